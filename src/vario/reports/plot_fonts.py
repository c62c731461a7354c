"""Fonts for plots with Chinese text, also on machines without a Chinese font."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

BUNDLED = Path(__file__).parent / "fonts" / "vario-plot-cjk.otf"
"""Only the glyphs of vario's own text; made by tools/make_font.py."""
BUNDLED_FAMILY = "Vario Plot CJK"
LATIN_FAMILY = "DejaVu Sans"
"""Comes with matplotlib."""

INSTALLED = (
    *("Noto Sans CJK", "Source Han Sans", "WenQuanYi", "PingFang", "Hiragino", "Microsoft YaHei", "SimHei", "SimSun"),
    *("Heiti", "Noto Serif CJK", "AR PL", "Droid Sans Fallback", "Arial Unicode"),
)
"""Name prefixes of fonts with many glyphs, which folder names may need."""

MISSING = "\N{WHITE SQUARE}"
"""Replaces a character that no available font has."""


class PlotFonts:
    """The font families for some texts, and the characters they can draw."""

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
        """Return the text with a square for every character that no available font has."""
        return "".join(character if ord(character) in self._known else MISSING for character in text)


def _glyphs(path: str) -> set[int]:
    from matplotlib.ft2font import FT2Font

    return set(FT2Font(path).get_charmap())
