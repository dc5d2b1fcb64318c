"""What is wrong with a value, in words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from comm_plan.errors import one_line

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

LONGEST_VALUE = 150
"""Characters of a value, and of what is wrong with it, in a message."""

_NUMBER, _WHOLE = "must be a number", "must be a whole number"
_TEXT, _LIST, _OBJECT = "must be a text", "must be a list", "must be an object"

_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is no such field",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "finite_number": _NUMBER,
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": _TEXT,
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} entries",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "holds a control character, such as a line's end",
    "tuple_type": _LIST,
    "list_type": _LIST,
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "literal_error": "must be {expected}",
    "union_tag_invalid": "{discriminator} {tag!r} is none of {expected_tags}",
    "union_tag_not_found": "has no field {discriminator}",
}
"""Of pydantic's findings, by their type; what is not here is said as pydantic does."""

_OF_TYPES = re.compile(r"constrained-|.*\[|(float|int|str|tuple|list|nullable)$")
"""Parts of a place that name types which were tried, and no fields."""


def first_problem(error: ValidationError) -> str:
    """Return where the first thing that is wrong is, its value, and what is wrong."""
    found = [(_fields(problem), problem) for problem in error.errors(include_url=False)]
    first, _ = found[0]
    # Of a value that fits none of several types, what is wrong by the nearest one.
    of_same = [each for each in found if each[0][: len(first)] == first]
    fields, problem = max(of_same, key=lambda each: len(each[0]))
    place, value, said = ".".join(fields), problem["input"], _in_words(problem)
    if not place:
        return said
    if problem["type"] == "missing" or isinstance(
        value, dict | list | tuple | BaseModel
    ):
        return f"{place}: {said}"
    return f"{place} = {one_line(repr(value), LONGEST_VALUE)}: {said}"


def _fields(problem: ErrorDetails) -> list[str]:
    """Return the names and indices that lead to where the problem is."""
    parts = map(str, problem["loc"])
    return [part for part in parts if not _OF_TYPES.match(part)]


def _in_words(problem: ErrorDetails) -> str:
    """Return what is wrong, in one line."""
    words = _WORDS.get(problem["type"])
    if words is not None:
        context = {k: _plain(v) for k, v in problem.get("ctx", {}).items()}
        return one_line(words.format(**context))
    said = problem["msg"].removeprefix("Value error, ")
    return one_line(said[:1].lower() + said[1:], LONGEST_VALUE)


def _plain(value: object) -> object:
    """Return a bound or a list of words as it is read best."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value.replace("'", "") if isinstance(value, str) else value
