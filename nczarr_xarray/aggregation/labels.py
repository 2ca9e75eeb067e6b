"""Coordinates that files do not have, but their names or attributes say: members, models, dates."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from nczarr_fsspec.errors import ExportError, URLError
from nczarr_xarray.aggregation.summary import Description, describe
from nczarr_xarray.export.form.storage import netcdf_type
from nczarr_xarray.model import NC_DTYPES, Attribute, Group, Hierarchy, Variable

#: Parts of a date, as `datetime.strftime` calls them.
_DATE = {"Y": r"\d{4}", "j": r"\d{3}", **dict.fromkeys("mdHMS", r"\d\d")}
_FIRST = {"m": "01", "d": "01", "j": "001", "H": "00", "M": "00", "S": "00"}
_DIRECTIVE = re.compile(f"%([{''.join(_DATE)}])")
#: The begin of a group of a pattern, and all of one that takes nothing but digits.
_GROUP, _DIGITS = r"(?<!\\)\((?!\?)", r"((\\d|\[0-9\])([+*?]|\{[\d,]+\})?)+\)"
_IS_NUMBER = re.compile(f"((?!{_GROUP}).)*{_GROUP}{_DIGITS}")
_TIME = {"units": "seconds since 1970-01-01", "calendar": "proleptic_gregorian"}


@dataclass(frozen=True, slots=True)
class Label:
    """The one coordinate of each file along a dimension.

    Parameters
    ----------
    name
        Of the dimension.
    attribute
        Of the dataset, that says it; "" if the address of the file does.
    pattern
        What says it of this text; None if all does.
    kind
        The type of numbers that it is, "string", or "date".
    """

    name: str
    attribute: str
    pattern: re.Pattern[str] | None
    kind: str

    @classmethod
    def of(cls, name: str, source: str) -> Label:
        """Return what a user has asked for; see ``dim`` of `nczarr_xarray.aggregate`.

        Raises
        ------
        URLError
            If it is no pattern.
        """
        attribute, _, text = source[1:].partition(":") if source[:1] == "@" else ("", "", source)
        if not text:
            return cls(name.strip("/"), attribute, None, "string")
        kind = "date" if "%Y" in text else "int64" if _IS_NUMBER.match(text) else "string"
        try:
            pattern = re.compile(_DIRECTIVE.sub(lambda m: f"(?P<{m[1]}>{_DATE[m[1]]})", text))
        except re.error as error:
            reason = f"has {text!r} for {name}, which is no pattern: {error}"
            raise URLError("dim", reason) from None
        return cls(name.strip("/"), attribute, pattern, kind)

    def added(
        self, target: str, hierarchy: Hierarchy, description: Description
    ) -> tuple[Hierarchy, Description]:
        """Return the metadata of a file, and what is kept of them, with its coordinate.

        Raises
        ------
        ExportError
            If the file has one, or is longer along the dimension.
        """
        root, layout = hierarchy.root, description.layout
        if self.name in root.variables:
            reason = f"has {self.name} itself: leave it out of dim, or rename it"
            raise ExportError(target, reason)
        own = root.dimensions.get(self.name)
        dimensions = () if own is None or own.path not in layout.dimensions else (own,)
        if own is not None and dimensions and own.size != 1:
            reason = f"has length {own.size} along {self.name}, for which dim has one value a file"
            raise ExportError(target, reason)
        value = self.value(target, hierarchy)
        nc_type = str(netcdf_type(value.dtype))
        said = _TIME if self.kind == "date" else {}
        attributes = {key: Attribute(key, "char", one) for key, one in said.items()}
        variable = Variable(self.name, "/", dimensions, nc_type, value.dtype, attributes)
        alone = replace(hierarchy, root=Group(variables={self.name: variable}))
        forms = (*layout.forms, *describe(target, alone, scalars=[self.name]).layout.forms)
        root = replace(root, variables={**root.variables, self.name: variable})
        description = replace(description, layout=replace(layout, forms=forms))
        return replace(hierarchy, root=root), description

    def value(self, target: str, hierarchy: Hierarchy) -> np.ndarray:
        """Return the coordinate of a file.

        Raises
        ------
        ExportError
            If it says none.
        """
        text, where = target, "its name"
        if self.attribute:
            attribute = hierarchy.root.attributes.get(self.attribute)
            if attribute is None:
                reason = f"has no attribute {self.attribute}, which is to say its {self.name}"
                raise ExportError(target, reason)
            given = attribute.value
            if isinstance(given, np.ndarray) and self.pattern is None and given.size == 1:
                return given.reshape(())
            text = given if isinstance(given, str) else " ".join(map(str, given))
            where = f"its attribute {self.attribute}"
        if self.pattern is None:
            return np.array(text, object)
        found = [*self.pattern.finditer(text)]
        if not found:
            reason = f"does not say its {self.name}: {self.pattern.pattern!r} is not in {where}"
            raise ExportError(target, reason)
        if self.kind != "date":
            return _array(found[-1][1 if self.pattern.groups else 0], self.kind)
        said = {**_FIRST, **found[-1].groupdict()}
        try:
            date = np.datetime64("{Y}-{m}-{d}T{H}:{M}:{S}".format(**said), "s")
        except ValueError as error:
            raise ExportError(target, f"has no date in {where}: {error}") from None
        return _array((date + np.timedelta64(int(said["j"]) - 1, "D")).astype(np.int64), "int64")


def _array(value: object, nc_type: str) -> np.ndarray:
    return np.array(value, NC_DTYPES[nc_type])
