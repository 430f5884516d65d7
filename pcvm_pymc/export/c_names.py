"""Names that a C function may not have: those of C and C++, and of their libraries."""

import re
from pathlib import Path

from pcvm_pymc.core.pieces.validation import shown

# with what is appended, names stay within 63 characters, which C99 distinguishes
_NAME, _MOST = re.compile("[A-Za-z](_?[A-Za-z0-9])*"), 50

_WORDS = Path(__file__).with_name("c_names.txt").read_text(encoding="ascii").split("\n\n")
_KEYWORDS, _MATH, _OTHER = (each.partition(":\n")[2].split() for each in _WORDS)
_FAMILIES = [
    rf"(?:{'|'.join(_MATH)})(?:f(?:16|32x?|64x?|128)?|l|d(?:32|64|128))?(?:_r)?",
    # which C keeps for its library; orders of bytes; macros
    "(?:is|mem|str|to|totalorder|wcs)[a-z0-9]+(?:_[lrs]|_explicit)?",
    "(?:exec[lv]|fe(?:clear|get|hold|raise|set|test|update))[a-z]*",
    r"[bl]e\d\dtoh|hto[bl]e\d\d|u_?(?:char|int|long|short)",
    r"[A-Z][A-Z0-9_]+|M_\w+",
    r"\w+_(?:t|unlocked)",
]
_TAKEN = re.compile("|".join([*_KEYWORDS, *_OTHER, *_FAMILIES]), re.ASCII)


def check_c_name(name: str) -> None:
    """Raise unless a name may be that of a C function, in C89 to C23 and in C++."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _MOST:
        raise ValueError(
            f"name={shown(name)}; needed a letter of ASCII, then at most {_MOST - 1} letters, digits and "
            "single underscores between them"
        )
    if _TAKEN.fullmatch(name):
        raise ValueError(
            f"name={name!r} is kept for C, C++ or their libraries; needed another, such as 'my_{name}'"
        )
