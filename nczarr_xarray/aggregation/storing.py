"""Where the data of a variable of an aggregation are to be: in the master, or in files. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from nczarr_fsspec.errors import ExportError

#: In the master: all values; or those of the first file, as others have the same. In files: as the
#: aggregation has them already; or of all files, by a new table.
Storing: TypeAlias = Literal["values", "first values", "old table", "table"]


def decide(
    path: str,
    along: Sequence[str],
    before: Literal["master", "files"] | None,
    *,
    is_coordinate: bool,
    is_small: bool,
    stays: bool,
) -> Storing:
    """Decide where the data of a variable are to be.

    Parameters
    ----------
    path
        Of the variable.
    along
        Its dimensions along which files differ.
    before
        Where an aggregation has the data before files are added to it; None without an aggregation.
    is_coordinate
        Whether it tells where data are.
    is_small
        Whether its values are known of all files.
    stays
        Whether the master holds it if it is the same in all files.

    Raises
    ------
    ExportError
        If the master holds it, and could not do so with the files.
    """
    can_be_held = not along or (is_coordinate and len(along) == 1)
    if before == "files":
        return "table" if along else "old table"
    if before == "master":
        if along and not is_small:
            raise ExportError(
                path,
                "is held by the aggregation itself, and cannot be read of the files: make it anew",
            )
        if can_be_held:
            return "values"
        raise ExportError(
            path, f"is held by the aggregation, and differs along {', '.join(along)}: make it anew"
        )
    if is_small and can_be_held:
        return "values"
    return "first values" if stays and not along else "table"
