"""Colors of the classes in published sets of masks, which may lack a file of them: ``--mask-values colors:camvid``."""

from __future__ import annotations

from collections.abc import Collection

from packer.images.masks import MaskValues

IGNORED = 255
"""The id of a color without a name."""
COLORS = {
    "camvid": """
        000000 Void 408040 Animal c00080 Archway 0080c0 Bicyclist 008040 Bridge 800000 Building 400080 Car
        4000c0 CartLuggagePram c08040 Child c0c080 Column_Pole 404080 Fence 8000c0 LaneMkgsDriv c00040 LaneMkgsNonDriv
        808040 Misc_Text c000c0 MotorcycleScooter 804040 OtherMoving 40c080 ParkingBlock 404000 Pedestrian 804080 Road
        8080c0 RoadShoulder 0000c0 Sidewalk c08080 SignSymbol 808080 Sky 4080c0 SUVPickupTruck 000040 TrafficCone
        004040 TrafficLight c04080 Train 808000 Tree c080c0 Truck_Bus 400040 Tunnel c0c000 VegetationMisc 40c000 Wall
    """,
    "cityscapes": """
        804080 road f423e8 sidewalk 464646 building 66669c wall be9999 fence 999999 pole faaa1e traffic_light
        dcdc00 traffic_sign 6b8e23 vegetation 98fb98 terrain 4682b4 sky dc143c person ff0000 rider 00008e car
        000046 truck 003c64 bus 005064 train 0000e6 motorcycle 770b20 bicycle 000000 -
    """,
    "synthia": """
        000000 void 808080 sky 800000 building 804080 road 0000c0 sidewalk 404080 fence 808000 vegetation c0c080 pole
        400080 car c08080 traffic_sign 404000 pedestrian 0080c0 bicycle 00af00 lanemarking 008080 traffic_light
        00ac00 lanemarking
    """,
}
"""Set -> colors and names, of which those of the same name are one class, and "-" is none.

CamVid: its ``label_colors.txt`` (Brostow et al.). Cityscapes: cityscapesScripts, helpers/labels.py, the classes with a
``trainId``; GTA5 and SYNTHIA-SF use them, too. SYNTHIA: RAND and AL, whose lane markings differ.
"""


def colors_of(name: str) -> MaskValues | None:
    """Return the classes of a set by its name, in the order of the table; None if it is not known."""
    if name not in COLORS:
        return None
    words = COLORS[name].split()
    pairs = [(int(code, 16), text.replace("_", " ") if name == "cityscapes" else text)
             for code, text in zip(words[::2], words[1::2], strict=True)]  # fmt: skip
    classes = list(dict.fromkeys(text for _, text in pairs if text != "-"))
    ids = tuple((code, IGNORED if text == "-" else classes.index(text)) for code, text in pairs)
    return MaskValues(tuple(classes), None, ids, in_colors=True)


def sets_with(colors: Collection[int]) -> list[str]:
    """Return the sets that have all of these colors (r << 16 | g << 8 | b)."""
    return [name for name in COLORS if (found := colors_of(name)) is not None and set(colors) <= dict(found.ids).keys()]
