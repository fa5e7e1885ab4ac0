"""Views and repeats: each crop of a batch is that of a loader which makes only that one."""

from __future__ import annotations

import json
import pickle
from itertools import islice

import cv2
import numpy as np
import pytest
import torch
from broken_packs import broken
from drawn_masks import pairs, write_files
from loader_packs import alike, decoded

from packer import (
    BuildOptions,
    CenterCrop,
    CropView,
    PackedDataset,
    PackedLoader,
    RandomResizedCrop,
    Resize,
    build_pack,
    open_pack,
)
from packer.errors import DamagedPack, UsageError
from packer.loading.views import _VIEW
from packer.samplers import BalancedSampler
from packer.samplers.order import derive, uniform

VIEWS = {
    "global": (2, RandomResizedCrop(24, scale=(0.4, 1), interpolation="area")),
    "local": CropView(RandomResizedCrop((20, 21), scale=(0.05, 0.4)), 3, flip=1.0),
    "whole": (1, Resize((22, 23))),
}
COUNTS = {"global": 2, "local": 3, "whole": 1}
FLIPS = {"global": 0.5, "local": 1.0, "whole": 0.5}


def options_of(name):
    view = VIEWS[name]
    return {"crop": view.crop if isinstance(view, CropView) else view[1], "flip": FLIPS[name]}


def each_alone(data, **options):
    """name -> the batches of each of its crops, by a loader of that crop alone, with its seed."""
    number, found = 0, {}
    for name, count in COUNTS.items():
        seeds = [7 if not k else derive(7 ^ _VIEW, k) for k in range(number, number + count)]
        loaders = [PackedLoader(data, 4, **options_of(name), seed=seed, **options) for seed in seeds]
        found[name], number = [list(loader) for loader in loaders], number + count
    return found


@pytest.mark.parametrize("kind", ["raw", "jpeg", "ragged", "gray", "gray16", "copy", "png", "boxes"])
def test_each_view_is_that_of_a_loader_of_its_own(pack, kind):
    expected = each_alone(pack(kind))
    batches = list(PackedLoader(pack(kind), 4, views=VIEWS, flip=True, seed=7))
    assert list(batches[0][0]) == list(VIEWS)
    for number, (images, targets) in enumerate(batches):
        for name, loaders in expected.items():
            alone = [batches[number] for batches in loaders]
            assert torch.equal(images[name], torch.cat([one for one, _ in alone])), name
            assert images[name].is_contiguous(memory_format=torch.channels_last)
            if kind == "boxes":
                assert alike(targets[name], [target for _, its in alone for target in its])
            else:
                assert torch.equal(targets, alone[0][1])


@pytest.mark.parametrize("alone", [True, False])
def test_masks_move_with_their_view(tmp_path, alone):
    """Masks that are all that there is, and masks beside boxes of the same image."""
    files = {**pairs(count=6)}
    if not alone:
        files["images.csv"] = b"path,label\n" + b"".join(b"images/im%d.png,a\n" % seed for seed in range(6))
    source = write_files(tmp_path / "set", files)
    build_pack(BuildOptions(str(source), str(tmp_path / "p.lmdb"), workers=1))
    path = tmp_path / "p.lmdb"
    expected = each_alone(path)
    for number, (images, masks) in enumerate(PackedLoader(path, 4, views=VIEWS, flip=True, seed=7)):
        for name, loaders in expected.items():
            its = [batches[number] for batches in loaders]
            assert torch.equal(images[name], torch.cat([one for one, _ in its]))
            assert alike(list(masks[name]), [mask for _, targets in its for mask in targets])
            assert not alone or masks[name].dtype == torch.int64


@pytest.mark.parametrize("kind", ["raw", "jpeg", "photos"])
@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 3, "prefetch": 4}, {"cache": "ram"}], ids=str)
def test_any_threads_make_the_same_views(pack, kind, options):
    expected = list(PackedLoader(pack(kind), 5, views=VIEWS, shuffle=True, flip=True, seed=7))
    assert alike(list(PackedLoader(pack(kind), 5, views=VIEWS, shuffle=True, flip=True, seed=7, **options)), expected)


def test_large_photos_are_decoded_once_as_small_as_every_view_allows(pack):
    """Against Pillow's decode and OpenCV's area filter of the same regions, of all views out of one decode."""
    path, views = pack("photos"), {"a": (1, RandomResizedCrop(16, interpolation="area")), "b": (2, CenterCrop(12, 13))}
    opened = open_pack(path)
    images, _ = next(iter(PackedLoader(path, 27, views=views, seed=3)))
    widths, heights = (np.asarray(opened.column(name)).astype(float) for name in ("width", "height"))
    numbers = uniform(3, 0, np.arange(27), views["a"][1].num_random + 1)[:, 1:]
    regions = views["a"][1].regions(widths, heights, numbers).astype(int)
    for record, (x, y, w, h) in enumerate(regions.tolist()):
        whole = decoded(bytes(opened.record(record)))
        exact = cv2.resize(whole[y : y + h, x : x + w], (16, 16), interpolation=cv2.INTER_AREA)
        off = np.abs(images["a"][record].permute(1, 2, 0).numpy().astype(int) - exact)
        assert off.mean() < 2.5 and off.max() < 16


@pytest.mark.parametrize("kind", ["photos", "boxes"])
def test_crops_that_shrink_share_a_halved_image(pack, kind):
    """Their edges are on pixels of it, pixels are those of an average, and boxes move by the same regions."""
    views = {"a": (3, RandomResizedCrop(10 if kind == "photos" else 6)), "b": (1, RandomResizedCrop((5, 7)))}
    loader = PackedLoader(pack(kind), 27, views=views, seed=3, flip=True)
    images, targets = next(iter(loader))
    opened, filler = loader.pack, loader._host.filler
    params = filler.params(np.arange(len(opened)), 0)
    halved = 0
    for name, crops in params.of.items():
        for k, one in enumerate(crops):
            for record, (x, y, w, h) in enumerate(one.regions.astype(int).tolist()):
                step = 1 << int(np.log2(max(1, min(w / one.output[1], h / one.output[0]))))
                halved += step > 1 and all(edge % step == 0 for edge in (x, y, w, h))
                whole = decoded(bytes(opened.record(record))) if kind == "photos" else opened.image(record)
                exact = cv2.resize(whole[y : y + h, x : x + w], one.output[::-1], interpolation=cv2.INTER_AREA)
                exact = exact[:, ::-1] if one.flipped[record] else exact
                off = np.abs(images[name][k * len(opened) + record].permute(1, 2, 0).numpy().astype(int) - exact)
                assert off.mean() < 6
            if kind == "boxes":
                its = targets[name][k * len(opened) : (k + 1) * len(opened)]
                assert alike(its, loader._host.targets.of(np.arange(len(opened)), one).as_tensors().as_dicts())
    assert halved > len(opened)


@pytest.mark.parametrize("kind", ["raw", "jpeg", "boxes"])
def test_repeats_are_so_many_crops_in_one_batch(pack, kind):
    views = {"all": (3, RandomResizedCrop(8))}
    expected = list(PackedLoader(pack(kind), 4, views=views, flip=True, seed=7, shuffle=True, with_index=True))
    options = {"crop": RandomResizedCrop(8), "flip": True, "seed": 7, "shuffle": True, "with_index": True}
    batches = list(PackedLoader(pack(kind), 4, repeats=3, **options))
    for (images, targets, records), (views, its, once) in zip(batches, expected, strict=True):
        assert torch.equal(images, views["all"]) and len(images) == 3 * len(once)
        assert torch.equal(records, once.repeat(3))
        assert alike(targets, its["all"] if kind == "boxes" else its.repeat(3))


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_and_resume_give_the_same_views(pack, world_size):
    data = PackedDataset(pack("raw"))

    def made(batch_size, **ranks):
        sampler = BalancedSampler(data, seed=4, num_samples=60, **ranks)
        return PackedLoader(data, batch_size, sampler=sampler, views=VIEWS, flip=True, with_index=True)

    whole = list(made(6))
    ranks = [list(made(6 // world_size, rank=rank, world_size=world_size)) for rank in range(world_size)]
    for (views, *_), *parts in zip(whole, *ranks, strict=True):
        for name, count in COUNTS.items():
            each = torch.stack([part[0][name].unflatten(0, (count, -1)) for part in parts], 2)
            assert torch.equal(each.flatten(0, 2), views[name])
    loader = made(6)
    list(islice(loader, 3))
    state = json.loads(json.dumps(loader.state_dict()))
    again = made(6)
    again.load_state_dict(state)
    assert alike(list(again), whole[3:])
    assert alike(list(pickle.loads(pickle.dumps(again))), list(_epoch(made(6), 1)))
    other = PackedLoader(data, 6, sampler=BalancedSampler(data, seed=4, num_samples=60), views={"a": VIEWS["whole"]})
    with pytest.raises(UsageError, match="state: has crop"):
        other.load_state_dict(state)


def _epoch(loader, epoch):
    loader.set_epoch(epoch)
    return loader


def test_normalized_on_the_way(pack):
    options = {"views": VIEWS, "seed": 7}
    plain = list(PackedLoader(pack("jpeg"), 4, **options))
    made = list(PackedLoader(pack("jpeg"), 4, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1), **options))
    mean, std = torch.tensor((0.5, 0.4, 0.3)).view(3, 1, 1), torch.tensor((0.2, 0.2, 0.1)).view(3, 1, 1)
    for (views, _), (values, _) in zip(plain, made, strict=True):
        for name, images in views.items():
            assert values[name].dtype == torch.float32
            assert torch.allclose(values[name], (images / 255 - mean) / std, atol=1e-5)


@pytest.mark.filterwarnings("ignore::packer.errors.DamagedRecordWarning")
def test_a_damaged_image_is_an_error_or_replaced_in_all_views(pack, tmp_path):
    path = broken(pack("jpeg"), tmp_path / "broken", [3, 11])
    with pytest.raises(DamagedPack) as caught:
        list(PackedLoader(path, 4, views=VIEWS))
    assert caught.value.key == "00000003"
    loader = PackedLoader(path, 4, views=VIEWS, on_error="replace", with_index=True)
    sound = list(PackedLoader(pack("jpeg"), 4, views=VIEWS, with_index=True))
    for (views, _, records), (expected, _, wanted) in zip(loader, sound, strict=True):
        same = (records == wanted).nonzero().flatten()
        assert not {3, 11} & set(records.tolist())
        for name, count in COUNTS.items():
            got, want = (one[name].unflatten(0, (count, -1))[:, same] for one in (views, expected))
            assert torch.equal(got, want)
    assert [one.record for one in loader.replaced] == [3, 11]


REFUSED = {
    "a list": ({"views": [RandomResizedCrop(8)]}, "views: must be a dict of names and views, got"),
    "nothing": ({"views": {}}, "views: must be a dict of names and views, got {}"),
    "a crop": ({"views": {"a": RandomResizedCrop(8)}}, "as a; write views="),
    "no count": ({"views": {"a": (0, RandomResizedCrop(8))}}, "count of the view a: must be an integer at least 1"),
    "no crop": ({"views": {"a": (2, None)}}, "crop: is needed for views; write packer.RandomResizedCrop(224)"),
    "both": ({"views": VIEWS, "crop": Resize(8)}, "crop: cannot be combined with views, which have their own"),
    "repeats": ({"views": VIEWS, "repeats": 2}, "repeats: cannot be combined with views"),
    "no repeats": ({"repeats": 0}, "repeats: must be an integer at least 1, got 0"),
    "repeats of nothing": ({"repeats": 2}, "crop: is needed for views"),
    "flip": ({"views": {"a": CropView(Resize((8, 8)), flip=3.0)}}, "flip: must be True, False or a chance"),
    "transform": ({"views": VIEWS, "transform": abs}, "transform: cannot be combined with views; apply it to the"),
    "device": ({"views": VIEWS, "cache": "device"}, "cache: cannot be combined with views, which are cut on the host"),
    "decode": ({"repeats": 2, "crop": Resize((8, 8)), "decode": "device"}, "decode: cannot be combined with repeats"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused(pack, name):
    options, message = REFUSED[name]
    with pytest.raises(UsageError) as refused:
        PackedLoader(pack("jpeg"), 4, **options)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_views_keep_their_crops(pack):
    loader = PackedLoader(pack("raw"), 4, views=VIEWS)
    with pytest.raises(UsageError, match="set_crop: is for a loader of one crop, but this one has views"):
        loader.set_crop(RandomResizedCrop(8))
