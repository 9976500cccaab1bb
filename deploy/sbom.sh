#!/bin/sh
# Prints the image's bill of materials as SPDX 2.3 JSON: voxserve's files with their SHA-256, every package of the
# distribution and of NVIDIA that is installed, and the packages whose headers were compiled in. The Dockerfile runs it.
#
#   deploy/sbom.sh VERSION COMPILED_IN FILE...        # FILE: absolute paths
#
# COMPILED_IN has a line "name version" for each package that is compiled in. Needs dpkg-query and sha256sum alone.
set -eu
version=$1 compiled_in=$2
shift 2

# (Nothing here needs escaping: dpkg allows letters, digits and +-.:~ alone in names and versions.)
# shellcheck disable=SC1091
system=$(. /etc/os-release && echo "$ID")

describe() {  # name version architecture relationship
  id=$(printf '%s-%s' "$1" "$3" | tr -c 'A-Za-z0-9.-' -)
  packages="$packages,
    {\"SPDXID\": \"SPDXRef-Package-$id\", \"name\": \"$1\", \"versionInfo\": \"$2\", \"downloadLocation\": \"NOASSERTION\",
     \"filesAnalyzed\": false, \"licenseConcluded\": \"NOASSERTION\", \"licenseDeclared\": \"NOASSERTION\", \"copyrightText\": \"NOASSERTION\",
     \"externalRefs\": [{\"referenceCategory\": \"PACKAGE-MANAGER\", \"referenceType\": \"purl\",
       \"referenceLocator\": \"pkg:deb/$system/$1@$(printf %s "$2" | sed 's/+/%2B/g; s/:/%3A/g')?arch=$3\"}]}"
  relationships="$relationships,
    {\"spdxElementId\": \"SPDXRef-voxserve\", \"relationshipType\": \"$4\", \"relatedSpdxElement\": \"SPDXRef-Package-$id\"}"
}

packages='' relationships='' files='' list=$(mktemp)
trap 'rm -f "$list"' EXIT
dpkg-query -W -f='${db:Status-Status} ${Package} ${Version} ${Architecture}\n' | sed -n 's/^installed //p' >"$list"
while read -r name its_version architecture; do
  describe "$name" "$its_version" "$architecture" DEPENDS_ON
done <"$list"
while read -r name its_version; do
  describe "$name" "$its_version" source CONTAINS
done <"$compiled_in"
number=0
for file in "$@"; do
  [ -r "$file" ] || { echo "sbom.sh: cannot read $file" >&2; exit 1; }
  number=$((number + 1))
  files="$files${files:+,}
    {\"SPDXID\": \"SPDXRef-File-$number\", \"fileName\": \".$file\", \"licenseConcluded\": \"NOASSERTION\", \"copyrightText\": \"NOASSERTION\",
     \"checksums\": [{\"algorithm\": \"SHA256\", \"checksumValue\": \"$(sha256sum "$file" | cut -d ' ' -f 1)\"},
                   {\"algorithm\": \"SHA1\", \"checksumValue\": \"$(sha1sum "$file" | cut -d ' ' -f 1)\"}]}"
  relationships="$relationships,
    {\"spdxElementId\": \"SPDXRef-DOCUMENT\", \"relationshipType\": \"DESCRIBES\", \"relatedSpdxElement\": \"SPDXRef-File-$number\"}"
done
cat <<JSON
{
  "spdxVersion": "SPDX-2.3",
  "dataLicense": "CC0-1.0",
  "SPDXID": "SPDXRef-DOCUMENT",
  "name": "voxserve-$version",
  "documentNamespace": "https://spdx.org/spdxdocs/voxserve-$version-$(cat "$list" "$@" | sha256sum | cut -c 1-32)",
  "creationInfo": {"created": "$(date -u +%Y-%m-%dT%H:%M:%SZ)", "creators": ["Tool: voxserve-sbom.sh"]},
  "documentDescribes": ["SPDXRef-voxserve"],
  "packages": [
    {"SPDXID": "SPDXRef-voxserve", "name": "voxserve", "versionInfo": "$version", "downloadLocation": "NOASSERTION",
     "filesAnalyzed": false, "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "copyrightText": "NOASSERTION",
     "primaryPackagePurpose": "APPLICATION"}$packages
  ],
  "files": [$files
  ],
  "relationships": [
    {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-voxserve"}$relationships
  ]
}
JSON
