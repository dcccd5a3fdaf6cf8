"""The bundled fonts and the fontconfig file that hides every other font, so that one page gives the same pixels on
every Linux.

Liberation Sans, Serif and Mono stand in for the families that web pages name; DejaVu Sans supplies the symbols they
lack. Left out: colour emoji and CJK (tens of megabytes); such characters come out as DejaVu's outlines or as empty
boxes. macOS and Windows do not read fontconfig: there the pixels are the system's, which the evidence of a render
shows.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from xml.sax.saxutils import escape

from ...failures import InfrastructureFailure
from ...identity import bytes_digest, digest, file_digest
from ...records import write_bytes

RENDERER_VERSION = "1"
"""To be raised by hand whenever a change to this package can change a pixel of an unchanged page."""

FOLDER = Path(__file__).parent

_FAMILIES = {
    "Liberation Sans": (
        *("sans-serif", "sans", "system-ui", "ui-sans-serif", "ui-rounded", "cursive", "fantasy", "emoji", "math"),
        *("Arial", "Helvetica", "Helvetica Neue", "Verdana", "Tahoma", "Trebuchet MS", "Geneva", "Calibri", "Segoe UI"),
        *("Roboto", "Inter", "Open Sans", "Lato", "Montserrat", "Poppins", "Noto Sans", "Source Sans Pro", "Ubuntu"),
        *("Cantarell", "Oxygen", "San Francisco", "SF Pro Text", "SF Pro Display", "Google Sans", "Product Sans"),
    ),
    "Liberation Serif": (
        *("serif", "ui-serif", "Times New Roman", "Times", "Georgia", "Cambria", "Garamond", "Palatino", "Noto Serif"),
        *("Merriweather", "Playfair Display"),
    ),
    "Liberation Mono": (
        *("monospace", "ui-monospace", "Courier New", "Courier", "Consolas", "Menlo", "Monaco", "SFMono-Regular"),
        *("Roboto Mono", "Fira Code", "JetBrains Mono", "Source Code Pro", "Noto Sans Mono", "Ubuntu Mono"),
    ),
}


def _aliases() -> str:
    lines = []
    for family, names in _FAMILIES.items():
        for name in names:
            lines.append(
                f'<match target="pattern"><test name="family" qual="any"><string>{escape(name)}</string></test>'
                f'<edit name="family" mode="assign" binding="same"><string>{family}</string></edit></match>'
            )
    return "\n".join(lines)


_TEMPLATE = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
<dir>{fonts}</dir>
<cachedir>{cache}</cachedir>
{aliases}
<match target="pattern"><edit name="family" mode="append_last"><string>Liberation Sans</string></edit>
<edit name="family" mode="append_last"><string>DejaVu Sans</string></edit></match>
<match target="font"><edit name="antialias"><bool>true</bool></edit><edit name="hinting"><bool>false</bool></edit>
<edit name="hintstyle"><const>hintnone</const></edit><edit name="autohint"><bool>false</bool></edit>
<edit name="rgba"><const>none</const></edit><edit name="lcdfilter"><const>lcdnone</const></edit></match>
</fontconfig>
"""


@functools.cache
def renderer_identity() -> dict[str, str]:
    """What of the renderer changes pixels: its version and a digest of fonts and font settings.

    The browser's own version is not in it (a security update shall not rerun everything); each render's evidence has
    it.
    """
    fonts = {path.name: file_digest(path) for path in sorted(FOLDER.glob("*.ttf"))}
    return {
        "renderer": RENDERER_VERSION,
        "fonts": digest({"files": fonts, "settings": _TEMPLATE, "aliases": _aliases()}),
    }


def fontconfig_file(fallback: Path) -> Path:
    """Path of a fontconfig file that knows the bundled fonts alone.

    It is written into the user's cache on first use, or into the folder `fallback` when that cannot be written. Raises
    InfrastructureFailure when neither can.
    """
    # Two checkouts must not share a file: it names the folder of the fonts.
    key = bytes_digest(f"{FOLDER}\n{_TEMPLATE}\n{_aliases()}".encode())[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "guiloop"
    try:
        return _written(home / f"fonts-{key}")
    except (InfrastructureFailure, OSError):
        return _written(fallback / f"fonts-{key}")


def _written(folder: Path) -> Path:
    path = folder / "fonts.conf"
    text = _TEMPLATE.format(fonts=escape(str(FOLDER)), cache=escape(str(folder / "cache")), aliases=_aliases())
    if not path.is_file() or path.read_bytes() != text.encode():
        write_bytes(path, text.encode())
    return path
