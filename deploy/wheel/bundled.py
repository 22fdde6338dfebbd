"""What a wheel says of the libraries inside it: their licences, and a bill of materials (CycloneDX, PEP 770)."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import ziglang
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from deploy.wheel.sources import RELEASE, Source

_ZIG = Path(ziglang.__file__).parent


@dataclass(frozen=True)
class Library:
    """A library inside a wheel."""

    name: str
    licence: str  # an SPDX expression
    text: Path
    version: str
    source: Source | None = None  # none: it comes with the compiler


def libraries(openssl: Source, nghttp2: Source) -> list[Library]:
    """Return all libraries that the compiled files of a wheel have inside."""
    llvm = re.search(r"_LIBCPP_VERSION (\d\d)(\d\d)(\d\d)", (_ZIG / "lib/libcxx/include/__config").read_text())
    assert llvm
    cxx_version = ".".join(str(int(number)) for number in llvm.groups())
    cxx = ("Apache-2.0 WITH LLVM-exception OR NCSA OR MIT", _ZIG / "lib/libcxx/LICENSE.TXT", cxx_version)
    return [
        Library("openssl", "Apache-2.0", openssl.folder / "LICENSE.txt", openssl.upstream_version, openssl),
        Library("nghttp2", "MIT", nghttp2.folder / "COPYING", nghttp2.upstream_version, nghttp2),
        *(Library(name, *cxx) for name in ("libc++", "libc++abi", "libunwind")),
        Library("zig-compiler-rt", "MIT", _ZIG / "LICENSE", importlib.metadata.version("ziglang")),
    ]


def write(folder: Path, version: str, inside: list[Library]) -> None:
    """Write into a folder what goes beside the metadata of a wheel: ``licenses/`` and ``sboms/``."""
    shutil.rmtree(folder, ignore_errors=True)
    for library in inside:
        licence = folder / "licenses" / library.name / "LICENSE.txt"
        licence.parent.mkdir(parents=True)
        shutil.copyfile(library.text, licence)
    bom = Bom(components=[_component(library) for library in inside])
    # The same of the same commit and the same libraries.
    bom.metadata.timestamp = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    versions = [(library.name, library.source.version if library.source else library.version) for library in inside]
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, f"{version} {bom.metadata.timestamp} {versions}")
    gpkvs = Component(
        name="gpkvs",
        version=version,
        type=ComponentType.APPLICATION,
        licenses=[LicenseExpression("Apache-2.0")],
        purl=PackageURL("pypi", None, "gpkvs", version),
        bom_ref="gpkvs",
    )
    bom.metadata.component = gpkvs
    bom.metadata.tools.components.add(
        Component(name="ziglang", version=importlib.metadata.version("ziglang"), type=ComponentType.APPLICATION)
    )
    bom.register_dependency(gpkvs, bom.components)
    (folder / "sboms").mkdir()
    (folder / "sboms" / "gpkvs.cdx.json").write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n")


def _component(library: Library) -> Component:
    source = library.source
    purl, files = None, []
    if source:
        purl = PackageURL("deb", "debian", source.name, source.version, {"arch": "source", "distro": RELEASE})
        files = [
            ExternalReference(
                type=ExternalReferenceType.SOURCE_DISTRIBUTION,
                url=XsUri(file),
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
            )
            for file, digest in sorted(source.hashes.items())
        ]
    return Component(
        name=library.name,
        version=library.version,
        type=ComponentType.LIBRARY,
        licenses=[LicenseExpression(library.licence)],
        purl=purl,
        external_references=files,
        bom_ref=library.name,
    )
