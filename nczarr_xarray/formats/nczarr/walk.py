"""Which metadata objects to read: a walk over the hierarchy without any I/O.

`walk` is a coroutine. It awaits each `ReadRound` (keys to read and prefixes to list,
all independent of each other), and returns the `Nodes` it found. A local caller
answers from files, a remote caller sends the requests of a round at the same time,
a test answers from a dict.

The walk tries these ways in turn: consolidated metadata if they are allowed and
trustworthy, NCZarr's own lists (one round per depth), listing the store. If all
of them fail, and the caller left the choice open, the walk looks for a dataset
that has nothing but consolidated metadata.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from nczarr_fsspec.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    FormatError,
    NCZarrError,
    StoreError,
)
from nczarr_fsspec.keystore import is_safe_name
from nczarr_fsspec.text import did_you_mean
from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.nczarr.documents import (
    Consolidated,
    Documents,
    GroupNode,
    Nodes,
    WalkOptions,
    about_strangers,
    key_of,
    no_metadata,
    only_groups,
)
from nczarr_xarray.formats.nczarr.jsontext import JSON
from nczarr_xarray.model import HarmlessError

#: Some programs write metadata of both versions. Then those of Zarr 3 are used, as in zarr-python,
#: unless the others are NCZarr's.
_V3 = "zarr.json"
_PART = "is a group of an NCZarr dataset: open that dataset, with group="


async def walk(options: WalkOptions, where: str) -> Nodes:
    """Find the metadata of one dataset.

    Parameters
    ----------
    where
        Names the dataset in errors.

    Raises
    ------
    DatasetNotFoundError
        If there is no dataset or no such group.
    FormatError, StoreError
        If the root or the wanted group cannot be read or understood.
    """
    return await _Walk(options, where).run()


class _Walk:
    def __init__(self, options: WalkOptions, where: str) -> None:
        self.options = options
        self.where = where
        self.nodes = Nodes()
        self.documents = Documents()
        self.wanted = options.group.strip("/")
        self.structured = False  # whether NCZarr's lists count

    # -- the root --------------------------------------------------------------

    async def run(self) -> Nodes:
        # of "a/b/c": "a", "a/b", "a/b/c"
        parts = self.wanted.split("/") if self.wanted else []
        ancestors = list(accumulate(parts, "{}/{}".format))
        for path in ancestors:
            if not all(map(is_safe_name, path.split("/"))):
                raise DatasetNotFoundError(self.where, f"no group {self.wanted!r}")
        try_consolidated = self.options.consolidated
        if try_consolidated is None:
            try_consolidated = self.options.remote
        await self.documents.load(
            [*spellings.ROOT_FILES, *([".zmetadata"] if try_consolidated else [])]
            + [key_of(path, file) for path in ancestors for file in spellings.GROUP_FILES],
            # a .zmetadata that is trusted is not compared with a listing
            [""] if self.options.remote and self.options.consolidated is not True else [],
        )
        root = self.root_documents()
        if self.nodes.generation == "v3":
            return self.nodes
        if try_consolidated:
            root = self.consolidate(root)
        missing: NCZarrError | None = None
        try:
            await self.follow(root, ancestors)
        except DatasetNotFoundError as error:
            missing = error
            if not root:  # the root has no metadata: its version is that of the objects below it
                keys = [key_of(path, _V3) for path in ancestors]
                await self.documents.load(keys)
                if any(self.documents.found[key] is not None for key in keys):
                    return Nodes("v3")
        if self.nodes.generation == "v3":
            return self.nodes
        if missing or self.is_empty():
            if self.options.consolidated is None and self.nodes.consolidated is None:
                await self.documents.load([".zmetadata"])
                consolidated = self.only_consolidated()
                if consolidated is not None:
                    self.nodes = Nodes(complete=True)
                    missing = None
                    await self.follow(self.use(consolidated), ancestors)
            if missing:
                raise missing
        top = self.nodes.groups[self.wanted]
        if top.groups and not (self.options.tree or self.wanted or top.documents or top.arrays):
            self.nodes.problems.append(only_groups(self.where, top.groups))
        return self.nodes

    async def follow(self, root: dict[str, JSON], ancestors: list[str]) -> None:
        """Walk from the root to the wanted group, and for a tree to everything below."""
        self.nodes.writer = spellings.writer(root)
        generation = spellings.detect(root)
        self.structured = generation is not None and not self.options.pure
        self.nodes.generation = generation or "v2"
        self.enter("", root)
        if self.is_part():
            reason = f"{_PART}. Here it is pure Zarr, without unlimited dimensions and types"
            self.nodes.problems.append(FormatError(self.where, reason))
        await self.documents.load(self.keys(spellings.G1_GROUP_FILES, *ancestors))
        missing: DatasetNotFoundError | None = None
        for path in ancestors:
            try:
                self.enter(path, self.group_documents(path))
            except DatasetNotFoundError as error:  # in pure Zarr, what is below makes it a group
                if self.structured:
                    raise
                missing = missing or error
                self.enter(path, {})
        try:
            await self.descend([self.wanted])
        except DatasetNotFoundError as error:
            raise missing or error from None
        await self.load_referenced_groups()

    def is_part(self) -> bool:
        """Tell whether the root is a group of an NCZarr dataset, whose superblock is elsewhere."""
        alone = self.nodes.generation == "v2" and not self.options.pure
        return alone and spellings.has_group_lists(self.nodes.groups[""].documents)

    def is_empty(self) -> bool:
        """Tell whether the wanted group is empty, and has no lists either."""
        wanted = self.nodes.groups[self.wanted]
        return wanted.lists is None and not (wanted.arrays or wanted.groups)

    def only_consolidated(self) -> Consolidated | None:
        """Return the consolidated metadata, if they name something where nothing else exists."""
        document = self.documents.found.get(".zmetadata")
        if document is None or isinstance(document, NCZarrError):
            return None
        try:
            consolidated = Consolidated.parse(document)
        except FormatError as error:
            self.nodes.problems.append(error)
            return None
        prefix = f"{self.wanted}/" if self.wanted else ""
        nodes = (key for key in consolidated.documents if key.endswith((".zarray", ".zgroup")))
        below = (key for key in nodes if key.startswith(prefix) and "/" in key[len(prefix) :])
        return consolidated if any(below) else None

    def root_documents(self) -> dict[str, JSON]:
        found: dict[str, JSON] = {}
        errors: list[NCZarrError] = []
        vital: list[NCZarrError] = []
        for file in spellings.ROOT_FILES:
            document = self.documents.found.get(file)
            if isinstance(document, NCZarrError):
                errors.append(document)
                if file in (".zgroup", ".zattrs") and not isinstance(document, AccessDeniedError):
                    vital.append(document)
            elif document is not None:
                found[file] = document
        # an error for an optional object does not matter if the required ones are there: some
        # servers answer 403 for objects that do not exist
        if vital or (errors and not found):
            raise (vital or errors)[0]
        if _V3 in found and spellings.detect(found) is None:
            self.nodes.generation = "v3"
        elif ".zarray" in found and ".zgroup" not in found:
            raise single_array(self.where)
        return found

    def consolidate(self, root: dict[str, JSON]) -> dict[str, JSON]:
        """Use ``.zmetadata`` if that is allowed; return the root documents to continue with."""
        required = self.options.consolidated is True
        document = self.documents.found.get(".zmetadata")
        if document is None or isinstance(document, StoreError):
            if required:
                lacks = "has no .zmetadata; "
                if document is not None or self.options.required:
                    raise document or DatasetNotFoundError(
                        self.where, f"{lacks}open with consolidated=False"
                    )
                self.nodes.problems.append(
                    HarmlessError(self.where, f"{lacks}the single objects are read instead")
                )
            return root
        try:
            if isinstance(document, NCZarrError):
                raise document
            consolidated = Consolidated.parse(document)
            consolidated.check(root, self.documents.listed.get(""), trusted=required)
        except NCZarrError as error:
            if required:
                raise
            self.nodes.problems.append(
                HarmlessError(error.object, f"{error.reason}; the single objects are read instead")
            )
            return root
        return self.use(consolidated)

    def use(self, consolidated: Consolidated) -> dict[str, JSON]:
        """Take documents and listings from `consolidated`; return those of the root."""
        self.nodes.consolidated = consolidated
        return self.documents.use(consolidated)

    # -- groups ----------------------------------------------------------------

    def keys(self, files: Iterable[str], *paths: str) -> list[str]:
        """Return the keys of the objects of nodes; G1 alone has some of its own."""
        g1 = self.nodes.generation == "G1"
        files = [file for file in files if g1 or not file.startswith(".ncz")]
        return [key_of(path, file) for path in paths for file in files]

    def group_documents(self, path: str) -> dict[str, JSON]:
        documents = self.documents.of(path, spellings.G1_GROUP_FILES)
        is_group = ".zgroup" in documents or spellings.group_lists(documents, path) is not None
        if path and not is_group:
            parent, _, name = path.rpartition("/")
            node = self.nodes.groups.get(parent)
            hint = did_you_mean(name, node.groups if node else ())
            raise DatasetNotFoundError(self.where, f"no group '/{path}'{hint}")
        return documents

    def enter(self, path: str, documents: dict[str, JSON]) -> None:
        """Record a group whose documents are there, with its lists of children."""
        node = GroupNode(path, documents)
        if self.structured:
            node.lists = spellings.group_lists(documents, path)
        if node.lists is not None:
            node.arrays = self.safe(path, node.lists.arrays)
            node.groups = self.safe(path, node.lists.groups)
        self.nodes.groups[path] = node

    def safe(self, path: str, names: Iterable[str]) -> tuple[str, ...]:
        """Leave out names that could lead outside the dataset, with a warning."""
        kept = []
        for name in names:
            if is_safe_name(name):
                kept.append(name)
            else:
                self.nodes.problems.append(
                    FormatError(f"/{path}", f"lists a child with the impossible name {name!r}")
                )
        return tuple(kept)

    async def descend(self, paths: list[str]) -> None:
        """Load the arrays of the groups at `paths` and, for a tree, everything below."""
        while paths:
            groups = [self.nodes.groups[path] for path in paths]
            discovered = [group for group in groups if group.lists is None]
            await self.documents.load([], [group.path for group in discovered])
            candidates = {group.path: self.children(group) for group in discovered}
            keys: list[str] = []
            for group in groups:
                for name in candidates.get(group.path, ()):
                    child = key_of(group.path, name)
                    keys += [key_of(child, file) for file in (".zarray", ".zgroup", ".zattrs")]
                for name in group.arrays:
                    keys += self.keys(spellings.G1_ARRAY_FILES, key_of(group.path, name))
                if self.options.tree:
                    for name in group.groups:
                        keys += self.keys(spellings.G1_GROUP_FILES, key_of(group.path, name))
            await self.documents.load(keys)
            strangers: list[str] = []
            for group in discovered:
                strangers += self.classify(group, candidates[group.path])
            await self.documents.load([], strangers)
            if self.is_version_3(discovered, strangers):
                self.nodes = Nodes("v3")
                return
            self.nodes.problems += about_strangers(
                self.where, [(path, self.documents.listed[path]) for path in strangers], 2
            )
            paths = []
            for group in groups:
                self.take_arrays(group)
                if self.options.tree:
                    paths += self.take_groups(key_of(group.path, name) for name in group.groups)

    def children(self, group: GroupNode) -> tuple[str, ...]:
        """Return the names below a group without lists, sorted as netCDF-C sorts them."""
        listing = self.documents.listed[group.path]
        if isinstance(listing, StoreError):
            raise listing
        if listing is None and not group.documents:
            raise no_metadata(self.where, ())
        if listing is None and self.is_part():
            raise StoreError(self.where, _PART)
        if listing is None:
            raise StoreError(
                self.where,
                f"the children of group '/{group.path}' cannot be found: the store cannot be "
                "listed, and there are neither NCZarr group lists nor consolidated metadata "
                "(.zmetadata) in the root: write these where the data are "
                "(zarr.consolidate_metadata), or open a group that has them by its own URL",
            )
        names = (n for n in listing if not n.startswith(".") and is_safe_name(n))
        return tuple(sorted(names, key=lambda name: name.encode("utf-8", "surrogatepass")))

    def classify(self, group: GroupNode, names: tuple[str, ...]) -> list[str]:
        """Find out from their documents which children are arrays and which are groups.

        Returns
        -------
        Paths of those that are neither.
        """
        arrays, groups, neither = [], [], []
        for name in names:
            path = key_of(group.path, name)
            is_group = self.documents.found[f"{path}/.zgroup"] is not None
            if self.documents.found[f"{path}/.zarray"] is not None:
                arrays.append(name)
                if is_group:
                    reason = "belongs to an array: what the group holds is left out"
                    self.nodes.problems.append(FormatError(f"{path}/.zgroup", reason))
            elif is_group:
                groups.append(name)
            else:
                neither.append(path)
        group.arrays, group.groups = tuple(arrays), tuple(groups)
        return neither

    def is_version_3(self, groups: list[GroupNode], strangers: list[str]) -> bool:
        """Tell whether everything is Zarr 3, in a root without metadata.

        Raises
        ------
        DatasetNotFoundError
            If nothing is there at all.
        """
        for group in groups:
            if not (group.documents or group.arrays or group.groups):
                listings = [self.documents.listed[path] for path in strangers]
                if not any(isinstance(names, frozenset) and _V3 in names for names in listings):
                    listed = self.documents.listed[group.path]
                    raise no_metadata(self.where, listed if isinstance(listed, frozenset) else ())
                return True
        return False

    def take_arrays(self, group: GroupNode) -> None:
        for name in group.arrays:
            path = key_of(group.path, name)
            try:
                documents = self.documents.of(path, spellings.G1_ARRAY_FILES)
                if ".zarray" not in documents:
                    raise FormatError(f"{path}/.zarray", "is missing, though its group lists it")
                self.nodes.arrays[path] = documents
            except NCZarrError as error:
                self.nodes.arrays[path] = error

    def take_groups(self, paths: Iterable[str]) -> list[str]:
        """Record groups whose documents are there, and return their paths; note the others."""
        taken = []
        for path in paths:
            try:
                self.enter(path, self.group_documents(path))
            except NCZarrError as error:
                self.nodes.problems.append(error)
            else:
                taken.append(path)
        return taken

    async def load_referenced_groups(self) -> None:
        """Load groups outside the wanted part whose dimensions its arrays use."""
        paths: dict[str, None] = {}
        for array, documents in self.nodes.arrays.items():
            if isinstance(documents, NCZarrError) or not self.structured:
                continue
            try:
                references = spellings.dimension_references(documents, array)
            except FormatError:
                continue  # reported when the array is built
            for reference in references or ():
                path = reference.strip("/").rpartition("/")[0]
                if path not in self.nodes.groups and all(map(is_safe_name, path.split("/"))):
                    paths[path] = None
        await self.documents.load(self.keys(spellings.G1_GROUP_FILES, *paths))
        self.take_groups(paths)


def single_array(where: str) -> FormatError:
    """Return the error for an array that was found in place of a group."""
    return FormatError(
        where,
        "is a single Zarr array, not a group: open the group or the folder that holds it, in "
        "which it is a variable",
    )
