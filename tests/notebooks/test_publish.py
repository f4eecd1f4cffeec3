"""What notebooks keep of their outputs: pictures that every page shows well."""

import io
import sys

import pytest
from PIL import Image

from tests.conftest import ROOT

sys.path.append(str(ROOT / "scripts"))
from publish import packed


@pytest.mark.parametrize("grey", [255, 244, 232])
def test_opaque_picture_keeps_white_and_grey(grey: int) -> None:
    picture = Image.effect_noise((64, 64), 80).convert("RGB")
    picture.paste((grey, grey, grey), (0, 0, 40, 40))
    file = io.BytesIO()
    picture.save(file, "PNG")
    kept = Image.open(io.BytesIO(packed(file.getvalue(), 256))).convert("RGB")
    assert kept.getpixel((20, 20)) == (grey, grey, grey)
