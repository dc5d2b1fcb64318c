"""Documents that are not as they should be, drawn by Hypothesis.

``from_schema`` draws whatever a JSON Schema allows, ``mutated`` changes some places of
a document that is right, ``damaged`` some bytes of any text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
Place = tuple[tuple[str | int, ...], Schema]

DEEP = json.loads("[" * 400 + "]" * 400)
HOSTILE = (
    *(None, True, "", [], {}, [[]], DEEP),
    *(0, -1, 10**4000, 2**53, 2**63, 2**64, -(2**63)),
    *(0.5, -0.0, 5e-324, 1e-300, 1e300, -1e300, 1.7976931348623157e308),
    *("[/red]", "[bold]", ":smile:", "\x1b[31m", "a\nb", "\x00", "\u202e", "\ud800"),
    *("$\\frac{$", "<script>", "{{ 1 }}", "'\"", "../../x", "x" * 100_000, "9" * 5000),
)
"""Values that have a history of breaking programs."""

BYTES = (
    *(b"", b"\x00", b"\xff", b"[", b"]", b"{", b"}", b'"', b",", b":", b"-", b"0"),
    *(b"9" * 30, b"e999", b"NaN", b"1e-320", b"\n", b" ", b"[" * 3000, b"9" * 5000),
)

_TEXT = st.text(  # without "n", so that none says nan or inf
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="n"), max_size=12
)

_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(0, 1) | _TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3)
    ),
    max_leaves=5,
)


def from_schema(schema: Schema, root: Schema | None = None) -> st.SearchStrategy[Any]:
    """Return what draws the values that ``schema`` allows.

    Args:
        schema: of the features that pydantic writes for documents.
        root: holds the ``$defs`` that ``$ref`` means; None: ``schema`` itself.
    """
    root = schema if root is None else root
    schema = resolved(schema, root)
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"]).map(_copy)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return st.one_of([from_schema(choice, root) for choice in choices])
    if "type" not in schema:
        return _ANYTHING
    return _OF_TYPE[schema["type"]](schema, root)


def _integers(schema: Schema, root: Schema) -> st.SearchStrategy[int]:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
    high = schema.get("maximum", schema.get("exclusiveMaximum", 2**70) - 1)
    return st.integers(int(low), int(high))


def _numbers(schema: Schema, root: Schema) -> st.SearchStrategy[float]:
    return st.floats(
        schema.get("minimum", schema.get("exclusiveMinimum")),
        schema.get("maximum", schema.get("exclusiveMaximum")),
        exclude_min="exclusiveMinimum" in schema,
        exclude_max="exclusiveMaximum" in schema,
        allow_nan=False,
        allow_infinity=False,
    )


def _arrays(schema: Schema, root: Schema) -> st.SearchStrategy[list[Any]]:
    least = schema.get("minItems", 0)
    items = from_schema(schema["items"], root)
    return st.lists(items, min_size=least, max_size=least + 3)


def _objects(schema: Schema, root: Schema) -> st.SearchStrategy[dict[str, Any]]:
    if "properties" not in schema:
        return st.dictionaries(_TEXT, from_schema(_values(schema), root), max_size=3)
    fields = {k: from_schema(v, root) for k, v in schema["properties"].items()}
    required = schema.get("required", ())
    return st.fixed_dictionaries(
        {k: v for k, v in fields.items() if k in required},
        optional={k: v for k, v in fields.items() if k not in required},
    )


_OF_TYPE = {
    "integer": _integers,
    "number": _numbers,
    "string": lambda schema, root: _TEXT,
    "boolean": lambda schema, root: st.booleans(),
    "null": lambda schema, root: st.none(),
    "array": _arrays,
    "object": _objects,
}


def resolved(schema: Schema, root: Schema) -> Schema:
    """Return what ``schema`` refers to, or itself."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


def places(value: Any, schema: Schema, root: Schema) -> Iterator[Place]:
    """Yield every place within ``value``, with the schema of what is there."""
    schema = resolved(schema, root)
    for choice in schema.get("anyOf", schema.get("oneOf", ())):
        choice = resolved(choice, root)
        if choice.get("type") == _type(value) and _fits(value, choice, root):
            schema = choice
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        children = [(key, fields.get(key) or _values(schema)) for key in value]
    elif isinstance(value, list):
        items = schema.get("items") or _values({})
        children = [(index, items) for index in range(len(value))]
    else:
        return
    for key, below in children:
        yield (key,), below
        for path, deeper in places(value[key], below, root):
            yield (key, *path), deeper


def _values(schema: Schema) -> Schema:
    """Return the schema of a mapping's values; of a field that is none: anything."""
    by_name = schema.get("patternProperties", {"": schema.get("additionalProperties")})
    return next(iter(by_name.values())) or {"enum": list(HOSTILE)}


def _type(value: Any) -> str:
    return {dict: "object", list: "array"}.get(type(value), "")


def _fits(value: Any, choice: Schema, root: Schema) -> bool:
    kind = choice.get("properties", {}).get("kind", {}).get("const")
    return kind is None or value.get("kind", kind) == kind


@st.composite
def mutated(draw: st.DrawFn, document: Any, schema: Schema) -> str:
    """Draw the text of ``document`` with one to three places changed.

    Half of the profiles are then put in order again, so that they get further.
    """
    changed = _copy(document)
    for _ in range(draw(st.integers(1, 3))):
        path, below = draw(st.sampled_from(list(places(changed, schema, schema))))
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        key = path[-1]
        what = draw(st.sampled_from(("schema", "schema", "hostile", "gone", "twice")))
        if what == "schema":
            holder[key] = draw(from_schema(below, schema))
        elif what == "hostile":
            holder[key] = _copy(draw(st.sampled_from(HOSTILE)))
        elif what == "gone":
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, _copy(holder[key]))
        if not isinstance(changed, dict) or not changed:
            break
    if draw(st.booleans()):
        _put_in_order(changed)
    return json.dumps(changed)


def _copy(value: Any) -> Any:
    """Return a copy of what may be nested too deep for ``copy.deepcopy``."""
    return json.loads(json.dumps(value))


def _put_in_order(document: dict[str, Any]) -> None:
    """Make tensors of a profile agree with themselves and each other, if they can."""
    try:
        for tensor in document["tensors"]:
            sizes = (size for size in tensor["shape"] if isinstance(size, int))
            tensor["numel"] = math.prod(sizes)  # a text times a number takes all memory
        document["tensors"].sort(key=lambda tensor: tensor["ready_s"])
    except (KeyError, TypeError, AttributeError):
        return


@st.composite
def damaged(draw: st.DrawFn, text: str) -> bytes:
    """Draw the bytes of ``text`` with one to four stretches replaced, or its start."""
    raw = text.encode()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(raw)))
        stop = start + draw(st.integers(0, 8))
        other = draw(st.integers(0, len(raw)))
        new = draw(
            st.one_of(
                st.sampled_from(BYTES),
                st.binary(max_size=4),
                st.just(raw[other : other + 40]),
            )
        )
        raw = raw[:start] + new + raw[stop:]
    return (
        raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 9)) == 9 else raw
    )
