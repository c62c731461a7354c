"""Fonts for a plot whose words may be Chinese, on a machine that may have no Chinese font."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

BUNDLED = Path(__file__).parent / "fonts" / "vario-plot-cjk.otf"
"""Just the glyphs of our own words; tools/make_font.py makes it."""
BUNDLED_FAMILY = "Vario Plot CJK"
LATIN_FAMILY = "DejaVu Sans"
"""Comes with matplotlib."""

INSTALLED = (
    *("Noto Sans CJK", "Source Han Sans", "WenQuanYi", "PingFang", "Hiragino", "Microsoft YaHei", "SimHei", "SimSun"),
    *("Heiti", "Noto Serif CJK", "AR PL", "Droid Sans Fallback", "Arial Unicode"),
)
"""Beginnings of the names of fonts with many glyphs: names of folders may need them."""

MISSING = "\N{WHITE SQUARE}"
"""Stands for a character that no font here has."""


class PlotFonts:
    """The families to draw some texts with, and what of the texts they can draw."""

    def __init__(self, texts: Iterable[str]) -> None:
        from matplotlib import font_manager

        wanted = {ord(character) for text in texts for character in text if character.isprintable()}
        fonts = font_manager.fontManager
        if BUNDLED_FAMILY not in {font.name for font in fonts.ttflist}:
            fonts.addfont(str(BUNDLED))
        self.families = [LATIN_FAMILY, BUNDLED_FAMILY]
        self._known = _glyphs(font_manager.findfont(LATIN_FAMILY)) | _glyphs(str(BUNDLED))
        if wanted - self._known:
            for font in fonts.ttflist:
                if font.name.startswith(INSTALLED) and (wanted - self._known) & (glyphs := _glyphs(font.fname)):
                    self.families.append(font.name)
                    self._known |= glyphs

    def drawable(self, text: str) -> str:
        """The text, with a square for every character that no font here has."""
        return "".join(character if ord(character) in self._known else MISSING for character in text)


def _glyphs(path: str) -> set[int]:
    from matplotlib.ft2font import FT2Font

    return set(FT2Font(path).get_charmap())
