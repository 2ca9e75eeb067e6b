"""Write references as virtual references of Icechunk, which has versions of whole datasets."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from nczarr_fsspec.errors import DatasetExistsError, ExportError, StoreError, on_error
from nczarr_fsspec.places.url import is_url, parse_url
from nczarr_fsspec.stores.referenceformat import inline_bytes
from nczarr_fsspec.transport.aws import storage_options as options_of
from nczarr_fsspec.transport.version import FileVersion, moment
from nczarr_xarray.aggregation.kerchunk import References
from nczarr_xarray.aggregation.zarr3 import array_document, chunk_key, group_document
from nczarr_xarray.export.cfa.master_place import MasterPlace
from nczarr_xarray.model import readable

if TYPE_CHECKING:
    import icechunk

SUFFIX = ".icechunk"
#: References that are handed over together.
_BATCH = 50_000


class Source(NamedTuple):
    """A file with chunks.

    Attributes
    ----------
    version
        What it is: Icechunk refuses to read another.
    options
        Options of the target's filesystem (fsspec).
    """

    version: FileVersion
    options: Mapping[str, Any] | None


def write_icechunk(
    place: MasterPlace,
    references: References,
    sources: Mapping[str, Source],
    *,
    replaces: bool,
) -> None:
    """Write references into a repository of Icechunk, with one commit, which comes last.

    Parameters
    ----------
    place
        Where: a folder on this machine or in S3.
    references
        Of an aggregation, with documents of Zarr 2.
    sources
        The files, by their names in the references.
    replaces
        Whether what is there becomes the older version.

    Raises
    ------
    ImportError
        If icechunk is not installed.
    DatasetExistsError
        If there is a repository that must not be changed.
    ExportError
        If Icechunk or Zarr 3 cannot say what there is.
    StoreError
        If Icechunk cannot read or write the repository.
    """
    try:
        import icechunk
    except ImportError:
        raise ImportError(
            f"{place.url}: repositories of Icechunk need icechunk: pip install "
            "'nczarr-xarray[icechunk]'"
        ) from None
    try:
        _write(place, references, sources, replaces=replaces)
    except icechunk.IcechunkError as error:
        reason = str(error).partition("\n")[0]  # then comes where in Icechunk that was
        raise StoreError(place.url, f"cannot be written: {reason}") from error


def _write(
    place: MasterPlace,
    references: References,
    sources: Mapping[str, Source],
    *,
    replaces: bool,
) -> None:
    import icechunk

    documents, chunks = _sorted(references)
    locations = {url: _location(url, place.url) for url in sources}
    storage = _storage(place)
    exists = icechunk.Repository.exists(storage)
    if exists and not replaces:
        raise DatasetExistsError(place.url, "is there already; overwrite=True adds a version to it")
    # older versions may have other files
    config = icechunk.Repository.fetch_config(storage) if exists else None
    config = config or icechunk.RepositoryConfig.default()
    for prefix, store in _containers(sources).items():
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
    if exists:
        repository = icechunk.Repository.open(storage, config)
        repository.save_config()
        _commit(repository, documents, chunks, sources, locations)
        return
    repository = icechunk.Repository.create(storage, config)
    with on_error(lambda: _remove_empty(place, repository)):
        _commit(repository, documents, chunks, sources, locations)


def _remove_empty(place: MasterPlace, repository: icechunk.Repository) -> None:
    """Remove a repository that was made for a version that did not come."""
    import icechunk

    with suppress(StoreError, icechunk.IcechunkError):  # what failed before is the error
        if len([*repository.ancestry(branch="main")]) == 1:
            place.store.delete(place.store.keys_below(place.file.name))


def _commit(
    repository: icechunk.Repository,
    documents: Mapping[str, Mapping[str, Any]],
    chunks: Mapping[str, Mapping[tuple[int, ...], str | list[Any]]],
    sources: Mapping[str, Source],
    locations: Mapping[str, str],
) -> None:
    """Make a new version."""
    import icechunk
    import zarr

    from nczarr_xarray.zarr.adopted import ZarrWriter

    session = repository.writable_session("main")
    zarr.group(session.store, overwrite=True)
    writer = ZarrWriter(session.store)
    for path, document in documents.items():
        writer.put(f"{path}/zarr.json".lstrip("/"), json.dumps(document).encode())
    for path, found in chunks.items():
        specs = []
        for position, value in found.items():
            if isinstance(value, str):
                writer.put(chunk_key(path, position), inline_bytes(value))
            else:
                url, start, size = value
                told = _told(sources[url].version)
                specs.append(
                    icechunk.VirtualChunkSpec([*position], locations[url], start, size, **told)
                )
        for at in range(0, len(specs), _BATCH):
            batch = specs[at : at + _BATCH]
            if refused := session.store.set_virtual_refs(f"/{path}", batch):
                raise ExportError(path, f"has chunks that Icechunk refuses, such as {refused[0]}")
    session.commit("aggregation of files")


def _sorted(
    references: References,
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[tuple[int, ...], str | list[Any]]]]:
    """Return documents of Zarr 3, and the references of chunks, by path."""
    metadata = json.loads(str(references[".zmetadata"]))["metadata"]
    documents: dict[str, dict[str, Any]] = {}
    chunks: dict[str, dict[tuple[int, ...], str | list[Any]]] = {}
    for key, document in metadata.items():
        path, _, name = key.rpartition("/")
        attributes = metadata.get(f"{path}/.zattrs".lstrip("/"), {})
        if name == ".zgroup":
            documents[path] = group_document(attributes)
        elif name == ".zarray":
            documents[path] = array_document(path, document, attributes)
            chunks[path] = {}
    for key, value in references.items():
        path, _, name = key.rpartition("/")
        if path in chunks and not name.startswith("."):
            shape = documents[path]["shape"]
            chunks[path][tuple(map(int, name.split("."))) if shape else ()] = value
    return documents, chunks


def _location(url: str, shown: str) -> str:
    """Return how Icechunk names a file."""
    if readable(url) != url:
        raise ExportError(shown, f"is to refer to {url}, which is not UTF-8: write JSON instead")
    if not is_url(url):
        return f"file://{quote(url)}"
    scheme, host, *_ = urlsplit(url)
    if scheme == "s3" or (scheme in ("http", "https") and ":" not in host):
        return url
    raise ExportError(
        shown,
        f"is to refer to {url}; Icechunk refers to files, S3, and HTTP at its usual port, as it "
        "loses others",
    )


def _containers(sources: Mapping[str, Source]) -> dict[str, icechunk.AnyObjectStoreConfig]:
    """Return where the files are, by the prefix of their locations."""
    import icechunk

    found: dict[str, Any] = {}
    folders = [os.path.dirname(url) for url in sources if not is_url(url)]
    if folders:
        folder = os.path.commonpath(folders)
        # in prefixes, Icechunk does not decode what is quoted
        while quote(os.fsencode(folder)) != folder:
            folder = os.path.dirname(folder)
        folder = folder.rstrip("/") + "/"
        found[f"file://{folder}"] = icechunk.local_filesystem_store(folder)
    for url in filter(is_url, sources):
        scheme, host, *_ = urlsplit(url)
        prefix = f"{scheme}://{host}/"
        if prefix not in found and scheme == "s3":
            service, credentials = _service(url, sources[url].options)
            anonymous = bool(credentials.get("anonymous"))
            found[prefix] = icechunk.s3_store(**service, anonymous=anonymous, s3_compatible=True)
        elif prefix not in found:
            found[prefix] = icechunk.http_store()
    return found


def _storage(place: MasterPlace) -> icechunk.Storage:
    """Return where Icechunk keeps the repository."""
    import icechunk

    target = place.file.folder + place.file.name
    if not is_url(target):
        try:
            os.makedirs(target, exist_ok=True)  # where that cannot be, releases before 2 panic
        except OSError as error:
            raise StoreError(place.url, f"cannot be written: {error.strerror}") from error
        return icechunk.local_filesystem_storage(target)
    if not target.startswith("s3://"):
        raise ExportError(place.url, "repositories of Icechunk are on this machine or in S3")
    service, credentials = _service(target, place.storage_options)
    _, bucket, path, *_ = urlsplit(target)
    return icechunk.s3_storage(bucket=bucket, prefix=path.strip("/"), **service, **credentials)


def _service(
    url: str, storage_options: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return which service of S3 has a URL, and with which credentials, as Icechunk wants them."""
    options = options_of(parse_url(url), storage_options)
    client = options.get("client_kwargs") or {}
    endpoint: str = options.get("endpoint_url") or client.get("endpoint_url") or ""
    service = {
        "region": client.get("region_name"),
        "endpoint_url": endpoint or None,
        "allow_http": endpoint.startswith("http://"),
        "force_path_style": bool(endpoint),
    }
    if options.get("anon"):
        return service, {"anonymous": True}
    if options.get("key"):
        names = {"access_key_id": "key", "secret_access_key": "secret", "session_token": "token"}
        return service, {name: options.get(other) for name, other in names.items()}
    return service, {"from_env": True}


def _told(version: FileVersion) -> dict[str, Any]:
    """Return the version of a file in the form that Icechunk stores."""
    if version.etag.startswith('"'):  # a weak tag is no condition of a request
        return {"etag_checksum": version.etag}
    modified = moment(version.modified)
    return {} if modified is None else {"last_updated_at_checksum": modified}
