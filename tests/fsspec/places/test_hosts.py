from __future__ import annotations

import pytest

from nczarr_fsspec.places.hosts import is_metadata_service, is_private

PRIVATE = [
    *("localhost", "LOCALHOST.", "a.localhost", "intranet", "box.local", "db.internal"),
    *("127.0.0.1", "127.1", "2130706433", "0x7f.0.0.1", "0177.0.0.1", "0", "0.0.0.0"),
    *("10.1.2.3", "172.16.0.1", "192.168.0.1", "100.64.0.1", "169.254.169.254", "224.0.0.1"),
    *("[::1]", "::", "[fe80::1]", "[fe80::1%eth0]", "[fd00::1]", "[::ffff:127.0.0.1]"),
    *("[::ffff:10.0.0.1]", "[64:ff9b::7f00:1]", "[::7f00:1]", "[2002:7f00:1::]"),
    *("①②⑦.⓪.⓪.①", "127。0。0。1", "１２７.0.0.1"),
]
PUBLIC = ["data.example.org", "8.8.8.8", "[2606:4700::1111]", "s3.eu-west-1.amazonaws.com", "a.b."]
PUBLIC += ["metadata.example.org", "notmetadata.goog", "instance-data.example.internal.org"]
METADATA = [
    *("169.254.169.254", "2852039166", "0xA9FEA9FE", "[::ffff:169.254.169.254]", "[fe80::1]"),
    *("[fd00:ec2::254]", "100.100.100.200", "metadata.google.internal.", "METADATA"),
    *("metadata.goog", "Metadata.Goog.", "instance-data", "instance-data.ec2.internal"),
    *("instance-data.eu-west-1.compute.internal", "metadata.tencentyun.com", "168.63.129.16"),
    *("[fd00:ec2::23]", "[fd00:ec2:0:0::fd]", "[fd20:ce::254]", "[fd00:c1::a9fe:a9fe]"),
]


@pytest.mark.parametrize("host", PRIVATE)
def test_a_private_host_is_known_by_its_name(host: str) -> None:
    assert is_private(host)


@pytest.mark.parametrize("host", PUBLIC)
def test_other_names_are_not_private(host: str) -> None:
    assert not is_private(host)
    assert not is_metadata_service(host)


@pytest.mark.parametrize("host", METADATA)
def test_where_clouds_tell_secrets(host: str) -> None:
    assert is_metadata_service(host)
    assert is_private(host)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "10.0.0.1", "box.local", "[::1]"])
def test_a_private_host_need_not_be_a_metadata_service(host: str) -> None:
    assert not is_metadata_service(host)
