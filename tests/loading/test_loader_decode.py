"""Decoding elsewhere than on the host: what is refused, in one line. What it gives is tested in tests/integration."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from packs import noise
from PIL import Image

import packer.dali
from packer import BuildOptions, PackedLoader, Resize, build_pack
from packer.errors import NotInstalled, UsageError

CROP = Resize((8, 8))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("raw", {}, r'raw.*: has raw images, which need no decoding; use decode="host" of PackedLoader, or cache='),
        (
            "png",
            {},
            r'png.*: has png images, which decode="device" does not decode; use decode="host"',
        ),
        ("jpeg", {"transform": lambda image: image}, 'decode: cannot be other than "host" with transform; leave out'),
        ("jpeg", {"decode": None}, 'decode: must be "host" or "device", got None'),
        ("raw", {"cache": "device"}, 'decode: cannot be other than "host" with cache="device"'),
        ("jpeg", {"decoder": "opencv"}, 'decoder: is for decoding on the host, and decode="device" does it here'),
        ("jpeg", {"decode": "gpu"}, """decode: must be "host" or "device", got 'gpu'"""),
    ],
)
def test_what_does_not_go_together(pack, kind, options, message):
    with pytest.raises(UsageError, match=message) as caught:
        PackedLoader(pack(kind), 4, **{"decode": "device", "crop": CROP, **options})
    assert "\n" not in str(caught.value)


def test_dali_refuses_the_same(pack, tmp_path):
    source, out = tmp_path / "source", str(tmp_path / "some.lmdb")
    source.mkdir()
    for suffix in ("gif", "png"):
        Image.fromarray(noise(0, 8, 8)).save(source / f"{suffix}.{suffix}")
    build_pack(BuildOptions(str(source), out, labels=("none",), encode="copy", workers=1))
    with pytest.raises(UsageError, match=r"some.lmdb: has gif images, which DALI does not decode"):
        packer.dali.pipeline(out, 4, device="cpu")
    with pytest.raises(UsageError, match="has raw images, which need no decoding"):
        packer.dali.pipeline(pack("raw"), 4, device="cpu")
    with pytest.raises(UsageError, match='cannot be other than "host" with transform'):
        packer.dali.pipeline(pack("jpeg"), 4, device="cpu", transform=lambda image: image)
    with pytest.raises(UsageError, match="""device: must be "mixed" or "cpu", got 'cuda'"""):
        packer.dali.pipeline(pack("jpeg"), 4, device="cuda")


def stood_in(monkeypatch):
    """Put modules into the places of torchcodec and DALI; nothing is decoded."""
    modules = {name: ModuleType(name) for name in ("torchcodec.decoders", "nvidia.dali", "nvidia.dali.plugin.pytorch")}
    modules["torchcodec.decoders"].decode_jpeg = None
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def test_stats_and_states_name_what_decodes(pack, monkeypatch):
    stood_in(monkeypatch)
    host = PackedLoader(pack("jpeg"), 4, crop=CROP)
    loaders = {
        "torchcodec": PackedLoader(pack("jpeg"), 4, crop=CROP, decode="device"),
        "dali": packer.dali.pipeline(pack("jpeg"), 4, crop=CROP, device="cpu"),
    }
    for name, loader in loaders.items():
        for _ in range(2):
            assert loader.stats()["decoder"] == loader.state_dict()["decoder"] == name
            loader.set_crop(Resize((9, 9)))
    with pytest.warns(UserWarning, match='JPEG decoder torchcodec, and .* uses simplejpeg: .* pass decode="device"'):
        host.load_state_dict(PackedLoader(pack("jpeg"), 4, crop=CROP, decode="device").state_dict())
    with pytest.warns(UserWarning, match='decoder simplejpeg, .* uses dali: .* slightly; pass decoder="simplejpeg"'):
        packer.dali.pipeline(pack("jpeg"), 4, crop=CROP, device="cpu").load_state_dict(host.state_dict())
    cached = PackedLoader(pack("raw"), 4, crop=CROP, cache="device")
    assert "decoder" not in cached.stats() and "decoder" not in cached.state_dict()


def test_libraries_that_are_missing(pack, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    with pytest.raises(NotInstalled, match=r"nvidia-dali: is not installed; pip install nvidia-dali-cuda120"):
        packer.dali.pipeline(pack("jpeg"), 4, device="cpu")
    with pytest.raises(NotInstalled, match="torchcodec: is not installed or does not fit"):
        PackedLoader(pack("jpeg"), 4, decode="device")
