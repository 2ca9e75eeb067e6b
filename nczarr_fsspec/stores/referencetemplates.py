"""Templates in kerchunk references: ``{{u}}``, ``{{f(c='text')}}``, ``{{(i + 1) * 1000}}``.

Kerchunk takes them for templates of Jinja, which is a language in which a text of a line can take
all memory. What references need of it are names, integers, strings, ``+ - * // %``, and calls of
other templates. Nothing else is evaluated, and all that is evaluated is bounded.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nczarr_fsspec.errors import FormatError

Value: TypeAlias = int | str

#: Characters of an expanded text, and of one expression, at most.
MAX_TEXT = 1 << 14
_MAX_EXPRESSION = 500
_MAX_NUMBER = 1 << 63
MOST_REMEMBERED = 1 << 10
_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
#: what an expression may have; no backslash, for instance
_ALLOWED = re.compile(r"""[\w\s+\-*/%().,='":@~]*""")
_FORMAT = re.compile(r"[^%]*%0?\d{0,2}[ds][^%]*")


@dataclass(frozen=True, slots=True)
class Templates:
    """The templates of one set of references.

    Parameters
    ----------
    texts
        By name.
    shown
        How messages name the references.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    shown: str = "references"
    remembered: dict[str, Template] = field(default_factory=dict, repr=False, compare=False)

    def expand(self, text: str, values: Mapping[str, Value] | None = None) -> str:
        """Return a text with its expressions evaluated.

        Parameters
        ----------
        values
            Names besides those of the templates.

        Raises
        ------
        FormatError
            If an expression cannot be understood, or becomes too long.
        """
        if "{{" not in text:
            return text
        known = self.remembered.get(text)
        if known is None:
            if len(self.remembered) >= MOST_REMEMBERED:
                self.remembered.clear()
            known = self.remembered[text] = Template.parse(text, self.shown)
        return known.render(self.texts if values is None else {**self.texts, **values}, self)


@dataclass(frozen=True, slots=True)
class Template:
    """A text with expressions, taken apart; `parts` are texts and expressions in turn."""

    text: str
    parts: Sequence[str | ast.expr]

    @classmethod
    def parse(cls, text: str, shown: str) -> Template:
        """Take a text apart; `FormatError` if it is no template."""
        pieces = _EXPRESSION.split(text)
        parts: list[str | ast.expr] = []
        for number, piece in enumerate(pieces):
            if number % 2 == 0:
                parts.append(piece)
                continue
            if len(piece) > _MAX_EXPRESSION or not _ALLOWED.fullmatch(piece):
                raise _not_understood(shown, piece)
            try:
                parts.append(ast.parse(piece.strip(), mode="eval").body)
            except (SyntaxError, ValueError, MemoryError, RecursionError):
                raise _not_understood(shown, piece) from None
        return cls(text, parts)

    def render(self, names: Mapping[str, Value], templates: Templates) -> str:
        """Evaluate the expressions; errors as `Templates.expand`."""
        rendered = "".join(
            part if isinstance(part, str) else str(self._value(part, names, templates))
            for part in self.parts
        )
        if len(rendered) > MAX_TEXT:
            raise FormatError(templates.shown, f"template {self.text!r:.80} becomes too long")
        return rendered

    def _value(self, node: ast.expr, names: Mapping[str, Value], templates: Templates) -> Value:
        match node:
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int() | str() as value):
                return _bounded(value, templates.shown)
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.Name(id=name):
                raise FormatError(templates.shown, f"template {self.text!r:.80} names no {name!r}")
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                value = self._value(inner, names, templates)
                if isinstance(value, int):
                    return -value
            case ast.BinOp(left=left, op=op, right=right):
                one = self._value(left, names, templates)
                other = self._value(right, names, templates)
                result = _combined(one, op, other)
                if result is not None:
                    return _bounded(result, templates.shown)
            case ast.Call(func=ast.Name(id=name), args=[], keywords=given) if (
                name in templates.texts
            ):
                arguments: dict[str, Value] = {}
                for one_given in given:
                    if one_given.arg is None:
                        raise _not_understood(templates.shown, self.text)
                    arguments[one_given.arg] = self._value(one_given.value, names, templates)
                # only the arguments are known inside: templates cannot call each other in circles
                inside = Templates({}, templates.shown)
                return Template.parse(templates.texts[name], templates.shown).render(
                    arguments, inside
                )
        raise _not_understood(templates.shown, self.text)


def _combined(one: Value, op: ast.operator, other: Value) -> Value | None:
    """Return what an operator makes of two values; None if it does not know these."""
    if isinstance(one, str):
        if isinstance(op, ast.Add) and isinstance(other, str):
            return one + other
        if isinstance(op, ast.Mod) and _FORMAT.fullmatch(one):
            try:
                return one % (other,)
            except TypeError:
                return None
        return None
    if isinstance(other, str):
        return None
    match op:
        case ast.Add():
            return one + other
        case ast.Sub():
            return one - other
        case ast.Mult():
            return one * other
        case ast.FloorDiv() if other:
            return one // other
        case ast.Mod() if other:
            return one % other
    return None


def _bounded(value: Value, shown: str) -> Value:
    within = len(value) <= MAX_TEXT if isinstance(value, str) else abs(value) < _MAX_NUMBER
    if not within:
        raise FormatError(shown, "a template has a number or a text that is too large")
    return value


def _not_understood(shown: str, text: str) -> FormatError:
    return FormatError(
        shown,
        f"template {text!r:.80} is not understood; names, integers, strings, + - * // % and "
        "calls of other templates are",
    )
