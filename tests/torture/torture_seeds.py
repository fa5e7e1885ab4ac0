"""The files of labels, selections, options and lists from which the mutations and the fuzzing start."""

from __future__ import annotations

import io
import json
from importlib.util import find_spec
from typing import Any

import numpy as np
from drawn import voc_xml

from packer.sources.coco_objects import rle_text

WITH_MASKS = find_spec("pycocotools") is not None
"""Whether masks of objects can be made."""
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAQAAAADCAAAAACRn/EaAAAAF0lEQVR4nGNg+P+fgeH/f4b/TAyM/xkAMeoF/py/BJYAAAAASUVORK5CYII="
"""4 x 3 pixels, black and white."""
INSTANCES = [
    bytes([29, 39]) + b"a94j000000000000000000cb0  " + rle_text([0, 1200]).encode(),
    bytes([2, 3]) + b"11200000O 0<", bytes([9, 9]) + rle_text([3, 4, 5, 6, 7, 75]).encode() + b" X3",
    bytes([1, 1]) + b"4 oooooo0 04", bytes([255, 255]) + rle_text([65000, 500, 36]).encode(),
]  # fmt: skip
INSTANCE_SHAPES = [
    b"\x1d\x27[[1,2,30.5,3,9,28]]", b"\x1d\x27[[1,2,30.5,3,9,28],[5,5,9,5,9,9,5,9],[1,1]]",
    b"\x02\x03{\"size\":[3,4],\"counts\":\"11200000O\"}", b"\x02\x03{\"size\":[3,4],\"counts\":[0,3,9]}",
    b"\x09\x09[[-1e5,5,1e5,5,1e5,6]]", b"\x09\x09[[0,0,1e9,0,0,1e9]]",
]  # fmt: skip

YOLO = [
    b"\x00" + b"0 0.5 0.5 0.25 0.3\n2 .1 1e-2 +0.3 -0\n",
    b"\x80" + b"1\t0.5 0.5 1 1\r\n\r\n0 0.1 0.1 0.2 0.1 0.2 0.2\r\n",
    b"\x92" + b"0 .5 .5 .2 .2 .1 .2 2 .3 .4 0\n",
    b"\xa3" + b"\xef\xbb\xbf0 .5 .5 .2 .2 .1 .2 .3 .4 .5 .6\n",
    b"\x00" + b"0 0.1 0.1 0.5 0.1 0.5 0.6 0.1 0.6\n1 .1 .2 .3 .2 .3 .4 .1 .4 0.9\n",
    b"\x81" + b"0 .1 .1 .5 .1 .5 .6 .1 .6\n1 .5 .5 .2 .2\n",
    b"\x84" + b"65535 0.1 0.2 0.3 0.4\r99999 nan 1e400 1_0 0x1",
]
YAML = [
    b"path: ../set\ntrain: images/train\nval: [a, b.txt]\nnc: 2\nnames: [cat, 'no']\n",
    b'names:\n  0: cat\n  2: &a dog\n  3: "d\\x41"\nkpt_shape: [17, 3]\ntest: *a\n',
    b"nc: 3\nflip_idx: [0, 2, 1]\ntrain: |\n  a\n  b\n? key\n: >-\n  folded\n!!str t: !x y\n",
    "names: [猫, é]\n".encode("utf-16"),
]
LIST = [
    b"\x00\0a.jpg cat\nb/c d.png dog\n",
    b"\x00\0path,label\r\na.jpg,0\r\n7.jpg,07\r\n",
    b"\x81path (x y)*2\x003\na.jpg 1 2 3 4\n7.jpg 1 -2 3.5 4e0\n/etc/passwd 1 2 3 4\n",
    b"\xf1path (xmin ymin xmax ymax class)*\0a.jpg 10,20,30,40,cat 5,6,7,8,dog\n7.jpg\n",
    b'\x81path cx cy w h _ label\0"b/c d.png"\t1\t2\t3\t4\tx\t"la""bel"\n../x.jpg\t1\t2\t3\t4\t5\t6\n',
]
LIST += [
    b"\x00\0filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,30,40,dog,1,2,9,8\na.jpg,30,40,cat,3,4,20,30\n",
    b"\x00\0a.jpg,1,2,9,8,dog\n7.jpg,,,,,\na.jpg,3,4,9,9,cat\n",
    b"\x04\0ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf\n"
    b"a,x,/m/01,1,0.1,0.9,0.2,0.8,0,1,0\n\0/m/01,Dog\n/m/02,Cat\n",
    b"\x00\0id,label\na,dog\n7,cat\n",
    b"\x00\x002\nlefteye_x lefteye_y righteye_x righteye_y\na.jpg 69 109 106 113\n7.jpg  1  2 3  4\n",
    b"\x00\0" + b"3\n5_o_Clock_Shadow Bald Young\na.jpg -1  1 -1\n7.jpg  1 -1 -1\n",
    b"\x02\0file_name;text;split\na.jpg;a dog;train\n7.jpg;a cat;val\n",
    b"\x02\0image_id,partition\na.jpg,0\n7.jpg,1\n",
    b"\x38\0path\tlabel\n" + b"".join(b"set/%d.jpg\tc%d\n" % (i, i % 3) for i in range(10)),
    b"\x01path (xmin ymin xmax ymax class)*\0a.jpg 10,20,30,40,1 5,6,7,8,0\n",
    b"\x38\0,filename,Cat,Dog\n0,/data/x/a.png,1,0\n1,/data/x/7.png,0,1\n",
    b'\x01path label split\0a.jpg;"a;b";train\n\n"7.jpg" ; c ; val\n',
    b'\x00\0image_id,width,height,bbox,source\na,40,30,"[1, 2, 3.5, 4]",x\na,40,30,"[9, 9, 30, 20]",x\n7,40,30,[],x\n',
    b"\x00\0image_id,PredictionString\na,14 1 0 0 1 1 7 .5 2 3 30 20\n7,\n",
    b"\x00\0img,rle_mask\na.jpg,1 5 31 6 61 7 95 2\n7.jpg,\n",
    b"\x00\0Image_Label,EncodedPixels\na.jpg_Fish,1 5 31 6\na.jpg_Sugar,\n7.jpg_Fish,30 4\n",
    b"\x02\0TRAIN,gs://b/a.jpg,dog,0.1,0.2,,,0.5,0.6,,\nVALIDATION,gs://b/7.jpg,cat,0.1,0.2,.5,.2,0.5,0.6,.1,.6\n",
    b"\x00\0a.jpg 10,20,30,40,1 5,6,7,8,0\n7.jpg 1,2,3,4,0\n",
    b"\x00\0patientId,x,y,width,height,Target\na,1,2,30,20,1\na,20,1,5,5,1\n7,,,,,0\n",
    b"\x81path value*2 label\0a.jpg,1.5,-2,x\n7.jpg,,nan,y\n",
    b"\x38\0file,age,yaw\na.jpg,45,0.5\n7.jpg,2e3,-1\n",
]
VOC = [
    b"\x01" + voc_xml("a.jpg", [("dog", 1, 2, 30, 20)], (30, 40)).encode(),
    b"\x01" + voc_xml("a.jpg", [("dog", 1, 2, 30, 20), ("7", 2.5, 2, 2.5, 9)]).encode(),
    b"\x08" + voc_xml("a.jpg", [], size=None).encode("utf-16"),
    b'\x02<?xml version="1.0" encoding="gb2312"?>\n' + voc_xml("b.jpg", [("猫", 1, 1, 9, 9)]).encode("gb18030"),
    b'\x00<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY d SYSTEM "file:///etc/passwd">]><annotation>&b;</annotation>',
    b"\x00<annotation><![CDATA[x]]><?p i?><size><width>40</width></size><a:b xmlns:a='u' c='d'/></annotation>",
]


BASES: dict[str, Any] = {
    "coco": {
        "images": [
            {"id": 1, "file_name": "a.jpg", "width": 30, "height": 40},
            {"id": 2, "file_name": "train/a.jpg", "width": 40, "height": 30},
            {"id": 7, "file_name": "x/c.png"},
        ],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 10, 20], "area": 200, "iscrowd": 0},
            {"id": 2, "image_id": 1, "category_id": 1, "segmentation": [[1, 1, 9, 1, 9, 9], [10, 10, 20, 10, 20, 20]]},
            {"id": 3, "image_id": 7, "category_id": 1, "segmentation": {"size": [4, 6], "counts": [5, 2, 2, 2, 13]}},
            {
                "id": 4, "image_id": 2, "category_id": 3, "bbox": [0, 0, 5, 5], "iscrowd": 1,
                "segmentation": {"size": [30, 40], "counts": "PdX1"},
                "keypoints": [1, 2, 2, 0, 0, 0], "num_keypoints": 1,
            },
        ],
        "categories": [
            {"id": 1, "name": "cat", "supercategory": "animal"},
            {"id": 3, "name": "dog", "keypoints": ["left_eye", "right_eye"], "skeleton": [[1, 2]]},
        ],
    },
    "labelme": {
        "version": "5.4.1", "flags": {"dog": True}, "imagePath": "a.jpg", "imageData": None,
        "imageHeight": 40, "imageWidth": 30,
        "shapes": [
            {"label": "dog", "points": [[1, 2], [9, 20]], "group_id": 1, "shape_type": "rectangle", "flags": {}},
            {"label": "7", "points": [[1, 2], [9, 20], [3, 30.5]], "group_id": None, "shape_type": "polygon"},
            {"label": "p1", "points": [[1, 2]], "shape_type": "point"},
            {"label": "p10", "points": [[3, 2]], "shape_type": "point"},
            {"label": "x", "points": [[1, 2], [3, 4]], "shape_type": "circle"},
            {"label": "x", "points": [[5, 6], [8, 8]], "shape_type": "mask", "mask": PICTURE},
        ],
    },
    "via": {
        "_via_settings": {},
        "_via_img_metadata": {
            "a.jpg9": {"filename": "a.jpg", "size": 9, "file_attributes": {"label": "x", "caption": ""}, "regions": [
                {"shape_attributes": {"name": "rect", "x": 1, "y": 2, "width": 9, "height": 8},
                 "region_attributes": {"class": "dog", "age": "7"}},
                {"shape_attributes": {"name": "polygon", "all_points_x": [1, 9, 9], "all_points_y": [2, 2, 8.5]},
                 "region_attributes": {"class": {"dog": True, "7": False}}},
                {"shape_attributes": {"name": "circle", "cx": 5, "cy": 5, "r": 3}, "region_attributes": {}},
            ]},
            "c.png9": {"filename": "x/c.png", "size": 9, "regions": {"0": {
                "shape_attributes": {"name": "point", "cx": 5, "cy": 5}, "region_attributes": {"class": "p1"}}}},
        },
    },
    "via-3": {
        "project": {"vid_list": ["1", "2"]}, "config": {}, "attribute": {
            "1": {"aname": "class", "type": 4, "options": {"0": "dog", "1": "7"}}, "2": {"aname": "wet", "type": 2,
                  "options": {"0": "a"}}, "3": {"aname": "age", "type": 1, "options": {}}},
        "file": {"1": {"fid": "1", "fname": "a.jpg", "type": 2, "src": ""}, "2": {"fname": "c.png", "src": "x/c.png"}},
        "view": {"1": {"fid_list": ["1"]}, "2": {"fid_list": ["2"]}},
        "metadata": {
            "1_a": {"vid": "1", "z": [], "xy": [2, 1, 2, 9, 8], "av": {"1": "0", "2": "0", "3": "7"}},
            "1_b": {"vid": "1", "z": [], "xy": [7, 1, 1, 20, 1, 20, 20.5], "av": {"1": "1"}},
            "1_c": {"vid": "1", "z": [], "xy": [3, 5, 5, 3], "av": {}}, "2_d": {"vid": 2, "xy": [1, 5, 5], "av": None},
            "2_e": {"vid": "2", "z": [], "xy": [], "av": {"1": "0"}},
        },
    },
    "datumaro": {
        "dm_format_version": "1.0", "infos": {}, "categories": {
            "label": {"labels": [{"name": "dog", "parent": ""}, {"name": "7"}]}, "mask": {"colormap": []}},
        "items": [
            {"id": "a", "annotations": [
                {"id": 0, "type": "bbox", "label_id": 0, "group": 1, "bbox": [1, 2, 9, 8],
                 "attributes": {"occluded": False, "rotation": 30.0, "x": "y"}},
                {"type": "polygon", "label_id": 1, "group": 0, "points": [1, 1, 20, 1, 20, 20], "attributes": {}},
                {"type": "mask", "label_id": 1, "rle": {
                    "counts": "e74T10000000000000000000000000[<", "size": [40, 30]}},
                {"type": "label", "label_id": 1}, {"type": "caption", "caption": "x"},
            ], "attr": {"frame": 3}, "image": {"path": "a.jpg", "size": [40, 30]}},
            {"id": "b/c", "annotations": [
                {"type": "points", "label_id": 0, "points": [1, 2], "visibility": [2]},
                {"type": "skeleton", "label_id": 0, "elements": [{"type": "points", "points": [5, 6], "label_id": 1}]},
            ], "media": {"path": ""}},
        ],
    },
    "sa1b": {
        "image": {"image_id": 7, "width": 30, "height": 40, "file_name": "a.jpg"},
        "annotations": [
            {"id": 1, "bbox": [1.0, 2.0, 9.0, 8.0], "area": 9, "predicted_iou": 0.9, "stability_score": 0.95,
             "segmentation": {"size": [40, 30], "counts": "e74T10000000000000000000000000[<"}},
            {"bbox": [0, 0, 2, 2], "segmentation": {"size": [40, 30], "counts": [600, 5, 595]}},
        ],
    },
    "labelstudio": [
        {"id": 1, "data": {"image": "/data/upload/1/0a1b2c3d-frame_000000.jpg"}, "annotations": [
            {"completed_by": 1, "was_cancelled": False, "updated_at": "2024", "result": [
                {"id": "r0", "original_width": 4, "original_height": 3, "from_name": "box", "type": "rectanglelabels",
                 "value": {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0, "rectanglelabels": ["dog"]}},
                {"id": "r0", "from_name": "fur", "type": "choices", "value": {"choices": ["wet"]}},
                {"id": "r1", "value": {"x": 5, "y": 5, "width": 1, "keypointlabels": ["p1"]}, "parentID": "r0"},
                {"id": "r2", "value": {"points": [[0, 0], [50, 0], [50, 50]], "polygonlabels": ["7"]}},
                {"id": "r3", "value": {"format": "rle", "brushlabels": ["x"], "rle": [
                    0, 0, 0, 48, 58, 55, 224, 0, 47, 127, 128]}},
            ]},
            {"completed_by": 2, "ground_truth": False, "result": []},
        ]},
        {"image": "/data/local-files/?d=b%2Fc.png", "id": 7, "kind": "dog", "annotator": 1, "annotation_id": 3,
         "box": [{"x": 1, "y": 2, "width": 3, "height": 4, "rotation": 5, "original_width": 40,
                  "original_height": 30}]},
    ],
    "supervisely": {
        "tags": [{"name": "night", "value": None}, {"name": "age", "value": 7}], "size": {"width": 40, "height": 30},
        "objects": [
            {"classTitle": "dog", "geometryType": "rectangle", "points": {"exterior": [[1, 2], [9, 8]]},
             "tags": [{"name": "wet", "value": "yes"}]},
            {"classTitle": "7", "geometryType": "polygon", "points": {
                "exterior": [[1, 1], [20, 1], [20, 20]], "interior": [[[5, 5], [9, 5], [9, 9]]]}},
            {"classTitle": "x", "geometryType": "bitmap", "bitmap": {"origin": [2, 3], "data": PICTURE}},
            {"classTitle": "p1", "geometryType": "point", "points": {"exterior": [[5, 6]], "interior": []}},
        ],
    },
    "createml": [
        {"image": "a.jpg", "annotations": [
            {"label": "dog", "coordinates": {"x": 10, "y": 12.5, "width": 6, "height": 8}},
            {"label": "cat", "coordinates": {"x": 20, "y": 20, "width": 9, "height": 9}},
        ]},
        {"imagefilename": "c.png", "annotation": []},
    ],
    "vott": {"name": "x", "tags": [{"name": "dog", "color": "#fff"}], "assets": {
        "a0": {
            "asset": {"format": "jpg", "id": "a0", "name": "a.jpg", "size": {"width": 30, "height": 40}, "type": 1},
            "regions": [
                {"id": "r0", "type": "RECTANGLE", "tags": ["dog"], "points": [],
                 "boundingBox": {"height": 5, "width": 6, "left": 1, "top": 2}},
                {"id": "r1", "type": "POLYGON", "tags": [],
                 "points": [{"x": 1, "y": 2}, {"x": 9, "y": 2}, {"x": 9, "y": 9}]},
            ],
            "version": "2.2.0",
        },
        "a1": {"asset": {"name": "c.png"}, "regions": []},
    }},
    "bdd100k": [
        {"name": "a.jpg", "attributes": {"weather": "clear"}, "size": {"width": 40, "height": 30}, "labels": [
            {"category": "dog", "attributes": {"occluded": True, "crowd": False, "color": "red"},
             "box2d": {"x1": 1, "y1": 2.5, "x2": 9, "y2": 8}},
            {"category": "7", "poly2d": [
                {"vertices": [[0, 9], [10, 20], [20, 9], [9, 1]], "types": "LCCC", "closed": True}]},
            {"category": "dog", "rle": {"size": [30, 40], "counts": "PdX1"}},
            {"category": "lane", "poly2d": [[1, 2, "L"], [3, 4, "C"], [3, 9, "C"]]}, {"category": "x", "box3d": {}},
        ]},
        {"name": "c", "frames": [{"timestamp": 1, "objects": [{"category": "dog", "attributes": {"ignored": True},
                                                              "box2d": {"x1": 1, "y1": 2, "x2": 3, "y2": 4}}]}]},
    ],
    "jsonl": {
        "source-ref": "s3://b/frame_000000.jpg", "file_name": "frame_000000.jpg",
        "label": "dog", "width": 40, "height": 30, "text": "a dog",
        "objects": {"bbox": [[1, 2, 3.5, 4], [9, 9, 1, 1]], "categories": [0, 1], "area": [14, 1]},
        "bb": {
            "annotations": [{"class_id": 0, "left": 1, "top": 2, "width": 3, "height": 4}],
            "image_size": [{"width": 40, "height": 30, "depth": 3}],
        },
        "bb-metadata": {"type": "groundtruth/object-detection", "class-map": {"0": "dog"}},
        "x": 1, "x-metadata": {"type": "groundtruth/image-classification", "class-name": "cat"},
    },
    "panoptic": {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [
            {"image_id": 1, "file_name": "a.png", "segments_info": [
                {"id": 66051, "category_id": 7, "iscrowd": 0, "area": 4, "bbox": [0, 0, 2, 2]},
                {"id": 9, "category_id": 1},
            ]},
            {"image_id": 2, "file_name": "b/c.png", "segments_info": []},
        ],
        "categories": [{"id": 7, "name": "sky", "isthing": 0}, {"id": 1, "name": "dog", "isthing": 1}],
    },
}  # fmt: skip
"""JSON that is edited."""
EDITS = [bytes([choice]) + bytes(pair) for choice in (16, 86) for pair in zip(range(0, 60, 3), range(60), strict=False)]

XML = b'<?xml version="1.0" encoding="utf-8"?>\n'
CVAT = XML + b"<annotations><version>1.1</version>"
SEEDS_OF: dict[str, list[bytes]] = {
    "yolo": YOLO,
    "yaml": YAML,
    "list": LIST,
    "voc": VOC,
    **{
        kind: [
            *EDITS,
            *(choice + json.dumps(base, indent=indent).encode() for choice, indent in ((b"\0", None), (b"\xe6", 1))),
        ]
        for kind, base in BASES.items()
    },
    "pts": [
        b"\x00version: 1\nn_points: 3\n{\n30.5 41\n 50 41.5 \n\n10\t11\n}\n",
        b"\xe0n_points:2\r\n{\r\n1 2\r\n3 4\r\n}",
        b"\x08version: 1 {\n1 2\n}\0\0version: 1\nN_POINTS: 1 {\n1e1 -2\n}\n",
        b"\x28\xef\xbb\xbfversion: 1\nn_points: 0\n{\n}\n",
    ],
    "dota": [
        b"\x00imagesource:GoogleEarth\ngsd:0.146\n10 2 30.5 18 32 40 11 41.5 plane 0\n1 2 3 4 5 6 7 8 car 1\n",
        b"\xe0'imagesource':GF2\r\n'gsd':null\r\n1e1 2 -3 4 5. .6 7 8 x\r\n",
        b"\x201 2 3 4 5 6 7 8 ship\n1 2 3 4 5 6 7 8\n",
        b"\x00gsd:1\n0 0 9 0 9 9 0 9 car\n",
        b"\x000 0 9 0 9 nan 0 9 car 0\n",
        b"\x081 2 3 4 5 6 7 8 ship 2\n\0\0\xef\xbb\xbf 0 0 9 0 9 9 0 9 \xe9 0\n\n0 .1 .1 .2 .1 .2 .2 .1 .2\n",
    ],
    "dlib": [
        b"\x00" + XML + b"<dataset><name>faces</name><images><image file='a.jpg' width='30' height='40'>"
        b"<box top='2' left='3' width='20' height='25' difficult='1' ignore='true'><label>dog</label>"
        b"<part name='00' x='5' y='6'/><part name='1' x='7' y='8'/></box>\n<box top='2' left='3' width='9' height='9'/>"
        b"</image>\n<image file='set\\x\\c.png'/><image file='none.jpg'/><image/></images></dataset>",
        b"\xe0<?xml version='1.0' encoding='ISO-8859-1'?><?xml-stylesheet href='a.xsl'?>\n<dataset><images>"
        b"<image file='a.jpg'><box top='-1' left='3' width='30.5' height='25'><part name='left_eye' x='1' y='2'/>"
        b"<part name='right_eye' x='3' y='2'/><label> a&amp;b </label></box></image><image file='a.jpg'/></images>"
        b"</dataset>",
        b'\x01<!DOCTYPE a [<!ENTITY b "cc">]><dataset><images><image file="&b;"/></images></dataset>',
    ],
    "cvat": [
        b"\xe0"
        + CVAT
        + b'<image id="0" name="a.jpg" width="40" height="30"><mask label="dog" rle="3, 5, 4" left="2" top="3"'
        b' width="4" height="3"/></image></annotations>',
        b"\xe0" + CVAT + b"<meta><task><id>7</id><size>4</size><labels><label><name>dog</name><attributes><attribute>"
        b"<name>age</name><input_type>number</input_type></attribute><attribute><name>ok</name><input_type>checkbox"
        b"</input_type></attribute></attributes></label><label><name>nose</name><parent>dog</parent></label></labels>"
        b"</task></meta>"
        b'<image id="0" name="a.jpg" subset="train" width="30" height="40"><box label="dog" occluded="1"'
        b' xtl="1.5" ytl="2" xbr="9" ybr="8" z_order="0"><attribute name="age">3</attribute><attribute name="ok">true'
        b'</attribute></box><box label="7" xtl="1" ytl="2" xbr="9" ybr="8" rotation="30.0"/>'
        b'<polygon label="dog" points="1,2;9,2;9.5,9"/><tag label="dog"/><polyline label="x" points="1,2;3,4"/></image>'
        b'<image id="1" name="b/c.png" width="0"><points label="dog" points="1,2;3,4"/></image></annotations>',
        b"\x00" + CVAT + b'<image name="a.jpg"><skeleton label="dog"><points label="nose" outside="0" occluded="1"'
        b' points="1,2"/><points label="eye" outside="1" points="3,4"/></skeleton></image><image name="train/a.jpg">'
        b'<points label="a" points="1,2"/><points label="b" points="3,4"/></image></annotations>',
        b"\x20" + CVAT + b"<meta><task><size>4</size><labels><label><name>dog</name></label></labels></task></meta>"
        b'<track id="0" label="dog"><box frame="0" keyframe="1" outside="0" occluded="0" xtl="1" ytl="2"'
        b' xbr="9" ybr="9"/><box frame="1" outside="1" xtl="1" ytl="2" xbr="9" ybr="9"/><box frame="3" xtl="1" ytl="2"'
        b' xbr="9" ybr="9"/></track><track id="1" label="7"><polygon frame="1" points="1,2;3,4;1,9"/></track>'
        b"</annotations>",
        b'\x00<!DOCTYPE a [<!ENTITY b "cc">]><annotations><image name="&b;"/></annotations>',
    ],
    "labelme-web": [
        b"\xe0<annotation><filename>a.jpg</filename><folder>x</folder><imagesize><nrows>40</nrows><ncols>30</ncols>"
        b"</imagesize><object><name>dog</name><deleted>0</deleted><occluded>yes</occluded><attributes>a</attributes>"
        b"<polygon><pt><x>1</x><y>2</y></pt><pt><x>9</x><y>2</y></pt><pt><x>9.5</x><y>8</y></pt></polygon></object>"
        b"<object><name>7</name><type>bounding_box</type><polygon><pt><x>1</x><y>2</y></pt><pt><x>9</x><y>8</y></pt>"
        b"</polygon></object><object><name>x</name><segm><mask>m.png</mask></segm></object></annotation>",
        b"\x08<annotation><source><sourceAnnotation>LabelMe</sourceAnnotation></source><object><name>p1</name><polygon>"
        b"<pt><x>1</x><y>2</y></pt></polygon></object></annotation>\0\0<annotation><object><deleted>1</deleted>"
        b"<polygon><pt/></polygon></object></annotation>",
        b"\x00<annotation><object><name>a</name><polygon><pt><x>1</x><y>2</y></pt><pt><x>9</x><y>2</y></pt>"
        b"<pt><x>9</x><y>8</y></pt></polygon></object><object><segm><box/></segm></object></annotation>",
        b"\x01<annotation><filename>a.jpg</filename><imagesize><nrows/></imagesize></annotation>",
        b"\x00<annotation><pt><x>nan</x></pt><object><polygon><pt><x>nan</x></pt></polygon></object></annotation>",
        b'\x00<!DOCTYPE a [<!ENTITY b "cc">]><annotation><pt>&b;</pt></annotation>',
    ],
    "widerface": [
        b"\x000--Parade/a.jpg\n2\n1 2 10 12 0 0 1 0 2 0 \n3 4 5 6 0 0 0 0 0 0 \nx/c.png\n0\n0 0 0 0 0 0 0 0 0 0 \n",
        b"\xe8a.jpg\r\n0\r\nc.png\r\n1\r\n1 2 3 4\r\n\0\0d.jpg\n1\n1.5 2 -3 4 0 0 0 0 0 0\n",
        b"\x20a.jpg\n1\n1 2 3\n\nnone.jpg\n3\n1 2 3 4\n",
    ],
    "kitti": [
        b"\x00Car 0.35 3 1.85 1.63 2.54 23.81 23.12 1.67 1.87 3.69 -16.53 2.39 58.49 1.57\n"
        b"DontCare -1 -1 -10 3.89 9.71 10.61 20.13 -1 -1 -1 -1000 -1000 -1000 -10\n",
        b"\xe8dog 0 0 0 1 2 3 4 5 6 7 8 9 10 11 0.5\r\n\0\0x 1 2",
    ],
    "visdrone": [
        b"\x006,8,27,11,0,0,0,0\r\n4,1,6,7,1,4,0,1,\r\n",
        b"\xe8\xef\xbb\xbf1,2,3,4,0,11,1,2\0\x001,2,3,4,1,12,0,0",
        b"\x00pedestrian,1,2,3,4\n",
    ],
    "icdar": [
        b"\x00\xef\xbb\xbf1,2,30,2,30,12,1,12,a, b\r\n1,2,30,2,30,12,1,12,###\r\n1,2,30,2,30,12,1,12,Latin,x\n",
        b'\xe838, 4, 20, 15, "Tired"\n1 2 4 8 "x"\n\0\x001,2,30,2,30,12,1,12,1,"\xe9"\n1.5,2,30,2,30,12,1,12\n',
    ],
    "crowdhuman": [
        b'\x00{"ID": "a", "gtboxes": [{"fbox": [1, 2, 3, 4], "tag": "person", "hbox": [1, 2, 1, 1], "vbox": [1, 2, 2], '
        b'"extra": {"box_id": 0, "occ": 1}, "head_attr": {"ignore": 0}}, {"fbox": [1, 2, 3, 4], "tag": "mask", '
        b'"extra": {"ignore": 1}}]}\n{"ID": "c", "gtboxes": []}\n',
        b'\xe8{"ID": "a", "gtboxes": []}\0\x00{"ID": "d", "gtboxes": [{"fbox": [1, 2, null], "tag": 7}]}',
    ],
    "openimages": [
        b"\x00ImageID,Source,LabelName,Confidence\na,x,/m/01,1\na,x,/m/02,0.7\nc,x,/m/02,0\n",
        b"\xe8ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf\n"
        b'a,x,/m/01,1,0.1,0.9,0.2,0.8,0,1,-1\nd,x,/m/01,1,0,1,0,1,0,0,0\n\0\0/m/01,Dog\n/m/02,"Cat, big"\n',
        b"\x08MaskPath,ImageID,LabelName,BoxID,BoxXMin,BoxXMax,BoxYMin,BoxYMax,PredictedIoU,Clicks\n"
        b"c.png,a,/m/01,x,0.1,0.9,0.2,0.8,0.9,\n\0\0/m/01,Dog\n",
    ],
    "rle": [
        bytes([4, 6, 1, 5, 2, 2, 2, 13]),
        bytes([3, 3, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        bytes([5, 5, 1, 6, 3, 2, 1, 1, 1, 2, 3, 6]),
        bytes([30, 40, 0]) + b"PdX1",
        bytes([4, 6, 0x3C]) + rle_text([500, 7, 25, 7, 997]).encode(),
        bytes([9, 9, 1, 80, 1]),
    ],
    "jsonl": [
        *EDITS,
        b'\x00{"file_name": "a.jpg", "text": "a dog", "label": 1, "objects": {"bbox": [[1, 2, 3.5, 4]],'
        b' "categories": [0], "area": [14]}, "width": 30, "height": 40}\n\n'
        b'{"file_name": "c.png", "objects": {"bbox": [], "categories": []}}',
        b'\xe8{"file_name": "train/a.jpg", "label": "dog", "n": [1]}\n\0\0'
        b'{"source-ref": "s3://b/x/frame_000001.jpg",'
        b' "bb": {"annotations": [{"class_id": 0, "left": 1, "top": 2, "width": 3,'
        b' "height": 4}], "image_size": [{"width": 40, "height": 30, "depth": 3}]}, "bb-metadata":'
        b' {"type": "groundtruth/object-detection", "class-map": {"0": "dog"}, "objects": [{"confidence": 0.9}]}}\n'
        b'{"source-ref": "c.png", "x": 1, "x-metadata": {"type": "groundtruth/image-classification",'
        b' "class-name": "cat"}}\n',
        b'\x21{"file_name": "a.jpg", "objects": [{"bbox": [9, 9, 1, 1], "category": "dog"}, {"bbox": [1, 2, 9, 9]}]}\n',
    ],
    "selection": [
        b'\x00a.jpg\n./7.jpg\nb/\n*.jpg\n[!a]*\nb/c d\nnone.png\n  q"q  \n',
        b"\x0100000000\n00000001\n12345678901\na\n",
        b"\x00path\treason\tproblem\na.jpg\tbad-label\tx\n\\xc3\\xa9,1.jpg\tx\ty\n\\udcff\t\t\n",
        b"\x00\xef\xbb\xbf7\r\n?.jpg\r\n[a-\n",
    ],
    "config": [
        b"labels: [voc, 'list:a.txt']\ncolumns: path label\nresize: 256\nfit: pad\npad-value: 7\nworkers: 2\n",
        b"encode: jpeg\nquality: 80\nshard-size: 64MB\ndecode_timeout: none\nmax-bad: 0.5%\nfail-fast: true\n",
        b"out: a.lmdb\nformat: lmdb\nsplit: train\ninclude: a.txt\nshuffle: 3\nboxes: clip\nrle: polygons\n",
        b"like: nothing\nsource: &a x\nmissing-labels: skip\non-bad: skip\nmode: gray\nmax-pixels: 1_0\n",
        b'resize: 16x12\ninterpolation: area\nquarantine: "\\u00e9\\x01"\nclasses: c.txt\noverwrite: True\n',
    ],
    "lists": [
        b"\x00path\treason\tproblem\na.jpg\tbad-label\ta.txt:3: is bad\nb\\\\c.jpg\tbad-image\t\n",
        b"\x01path\treason\n\\xff.jpg\tno label\n\\udcff.jpg\tpermission\n\\N{DOG}\tx\n",
        b"\x02path\tchange\tlabel\tbox\tbefore\tafter\na.jpg\tclipped\ta.txt:1\t1 dog\t0 0 9 9\t0 0 8 8\n",
    ],
}
"""Parser -> its seeds; the first byte of each chooses how it is read."""
VIA_TABLES = [
    b"\x08filename,region_shape_attributes,region_attributes,file_attributes\n"
    b'a.jpg,"{""name"":""rect"",""x"":1,""y"":2,""width"":3,""height"":4}","{""class"":""dog""}",{}\nb.jpg,{},{},\n'
]
STUDIO_TABLES = [
    b"\0annotation_id,annotator,box,created_at,id,image,kind,lead_time,updated_at\n"
    b'3,1,"[{""x"": 1, ""y"": 2, ""width"": 3, ""height"": 4, ""rectanglelabels"": [""dog""], ""rotation"": 5,'
    b' ""original_width"": 40, ""original_height"": 30}]",2024,7,/data/upload/1/0a1b2c3d-a.jpg,dog,1.5,2024\n'
    b'4,2,,2025,7,/data/upload/1/0a1b2c3d-a.jpg,"{""choices"": [""cat"", ""dog""]}",1.5,2025\n',
]
SEEDS_OF["via"] += [b"\x08{}\0\0" + table[1:] for table in VIA_TABLES]
for kind in ("via", "labelstudio"):
    SEEDS_OF[kind] += [
        b"\0{",
        b"\0null",
        b'\0{"from_name": "_via_settings", "to_name": {"regions": 7}, "_via_settings": 7}',
    ]
SMALL_MAP = np.arange(48, dtype=np.float32).reshape(6, 8)


def npy(values: Any) -> bytes:
    """The bytes of a .npy file."""
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def _npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


ROWS = [
    b"\0key,more\n7,1.5\n8,2\nx,-3\n", b'\0path,more,x\na.jpg,"a ""b""",1\n7.jpg,c,2\nb/c d.png,,3\n',
    b"\x81key\tx\n8\t1\nx\t2\n7\t3\n", b"\x20key,more\n7,a\n7,b\n8,c\nx,d\n",
    b'\x02{"key": "7", "more": [1, 2]}\n{"key": "8", "more": [3, 4]}\n{"key": "x", "more": [5, 6]}\n',
    b'\x32{"path": "a.jpg", "more": {"a": 1}}\n{"path": "7.jpg", "more": null}\n',
    b"\3" + npy(SMALL_MAP[:3]), b"\3" + npy(SMALL_MAP), b"\x08" + npy(np.arange(3, dtype=">i2")),
    b"\4" + _npz(key=np.array(["7", "x", "8"]), more=SMALL_MAP[:3]),
    b"\x0e" + _npz(path=np.array([b"a.jpg"]), more=SMALL_MAP),
]  # fmt: skip
"""Files for packer attach."""
