"""Forms: what a kind of document must be, as a JSON Schema; what does not fit is refused by its place in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import TYPE_CHECKING, Any

from mssp._constraints import shown
from mssp._documents import LARGEST, one_line

if TYPE_CHECKING:
    from jsonschema import ValidationError


@dataclass(frozen=True)
class Form:
    """What a kind of document must be: a JSON Schema that lies in a package.

    Args:
        kind: what messages call the file, such as ``check file``.
        part: the name of the part of the schema (in its ``$defs``) that describes the document, if it is not all of it.
    """

    kind: str
    package: str
    file: str
    part: str = ""

    def corrupt(self, message: str) -> ValueError:
        """The error for a document of this kind that contradicts the schema or itself."""
        return ValueError(one_line(f"corrupt {self.kind}: {message}"))

    def refuse_unfit(self, document: Any) -> None:
        """A ValueError names the first place of the document that is not as the schema says."""
        error = next(self._validator.iter_errors(document), None)
        if error is not None:
            raise self.corrupt(_told(error))

    def agree(self, place: str, value: object, follows: object) -> None:
        """A ValueError names the place whose value is not what follows from the rest of the document."""
        if value != follows:
            raise self.corrupt(f"{place} is {_got(value)}, and from the rest of the file follows {_got(follows)}")

    @cached_property
    def _validator(self) -> Any:
        # jsonschema takes long to import, and commands that read no results do without.
        from jsonschema import Draft202012Validator, validators

        schema = json.loads(resources.files(self.package).joinpath(self.file).read_text(encoding="utf-8"))
        types = Draft202012Validator.TYPE_CHECKER.redefine_many({"integer": _is_whole, "number": _is_number})
        strict = validators.extend(Draft202012Validator, type_checker=types)
        definitions = schema.pop("$defs", {})
        return strict(_without_references(definitions[self.part] if self.part else schema, definitions))


def _without_references(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema that contains what it refers to: jsonschema takes most of its time to look references up."""
    if isinstance(schema, list):
        return [_without_references(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    here = {key: _without_references(part, definitions) for key, part in schema.items() if key != "$ref"}
    if "$ref" in schema:
        here = _without_references(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions) | here
    return here


def _is_whole(_: object, value: object) -> bool:
    return type(value) is int and abs(value) <= LARGEST  # 64.0 is whole to JSON Schema, and no size to us


def _is_number(_: object, value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


# -- errors in words ---------------------------------------------------------------------------------------------------

_TYPES = {
    "object": "an object", "array": "a list", "string": "a text", "integer": "a whole number", "number": "a number",
    "boolean": "true or false", "null": "null",
}  # fmt: skip
_BOUNDS = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "of at most", "exclusiveMaximum": "below"}


def _told(error: ValidationError) -> str:
    place, schema, value = [str(key) for key in error.absolute_path], error.schema, error.instance
    if isinstance(schema, bool):  # a key that is not allowed here
        return f"it has {_name(place)}, which does not go with the rest"
    if error.validator in ("required", "dependentRequired"):
        required = error.validator_value
        if isinstance(required, Mapping):
            required = [name for key, names in required.items() if key in value for name in names]
        return f"no {_name([*place, next(name for name in required if name not in value)])}"
    if error.validator == "additionalProperties":
        patterns = schema.get("patternProperties", {})
        known = schema.get("properties", {})
        unknown = (key for key in value if key not in known and not any(re.search(p, key) for p in patterns))
        return f"it has {_name([*place, next(unknown)])}, which this mssp does not know"
    return f"{one_line('.'.join(place)) or 'it'} must be {_what(schema)}, got {_got(value)}"


def _name(place: Sequence[str]) -> str:
    return f"'{one_line('.'.join(place))}'"


def _got(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return "an object" if isinstance(value, Mapping) else shown(value)


def _what(schema: Mapping[str, Any]) -> str:
    """What a schema asks for, in words.

    >>> _what({"type": ["integer", "null"], "minimum": 1}), _what({"enum": ["ok", "off", None]})
    ('a whole number of at least 1 or null', 'one of ok, off, null')
    """
    if "const" in schema or "enum" in schema:
        words = ["null" if word is None else str(word) for word in schema.get("enum", [schema.get("const")])]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    types = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", ["object"])
    return " or ".join(_TYPES[name] + _size(name, schema) for name in types)


def _size(name: str, schema: Mapping[str, Any]) -> str:
    if name in ("integer", "number"):
        if "minimum" in schema and "maximum" in schema:
            return f" from {schema['minimum']:g} to {schema['maximum']:g}"
        return "".join(f" {words} {schema[bound]:g}" for bound, words in _BOUNDS.items() if bound in schema)
    if name == "string":
        return _count(schema, "minLength", "maxLength", "characters")
    if name == "array":
        different = " different" if schema.get("uniqueItems") else ""
        return _count(schema, "minItems", "maxItems", f"{different} parts".strip())
    return ""


def _count(schema: Mapping[str, Any], least: str, most: str, things: str) -> str:
    if most not in schema:
        return f" of {schema[least]} {things} or more" if least in schema else ""
    return f" of {schema.get(least, 0)} to {schema[most]} {things}"
