"""The fonts that digits are drawn with: those that training sees, and those kept for evaluation.

Fonts come from packages of the ``spark-training`` extra, so that a picture is the same on every
machine; no font of the system is used. ``None`` stands for the one inside Pillow.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from PIL import ImageFont

# Package -> the file names in it that we use.
TRAINING: dict[str, tuple[str, ...]] = {
    "font_roboto": ("Roboto-Regular.ttf", "Roboto-Bold.ttf", "Roboto-Medium.ttf"),
    "font_source_sans_pro": ("SourceSansPro-Regular.ttf", "SourceSansPro-Bold.ttf"),
    "font_source_serif_pro": ("SourceSerifPro-Regular.ttf", "SourceSerifPro-Bold.ttf"),
}
UNSEEN: dict[str, tuple[str, ...]] = {
    "font_hanken_grotesk": ("HankenGrotesk-Medium.otf", "HankenGrotesk-Bold.otf"),
    "font_manrope": ("Manrope-Regular.ttf", "Manrope-Bold.ttf"),
}

Fonts: TypeAlias = tuple[Path | None, ...]
BUILT_IN: Fonts = (None,)


def training_fonts() -> Fonts:
    """Return Pillow's font and the training packages' files.

    Raises:
        ModuleNotFoundError: the ``spark-training`` extra is not installed.
    """
    return BUILT_IN * 2 + _files(TRAINING)


def unseen_fonts() -> Fonts:
    """Return files that no training picture was drawn with; raises like ``training_fonts``."""
    return _files(UNSEEN)


@cache
def sized(path: Path | None, size_px: int) -> ImageFont.FreeTypeFont:
    """Return the font at this size; glyphs are laid out by Pillow's own simple engine."""
    if path is None:
        found = ImageFont.load_default(size_px)
        assert isinstance(found, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
        return found
    return ImageFont.truetype(path, size_px, layout_engine=ImageFont.Layout.BASIC)


def _files(wanted: dict[str, tuple[str, ...]]) -> Fonts:
    found: list[Path | None] = []
    for package, names in wanted.items():
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(
                f"{package} is not installed: pip install '.[spark-training]'"
            )
        folder = Path(spec.submodule_search_locations[0]) / "files"
        found += [folder / name for name in names]
    return tuple(found)
