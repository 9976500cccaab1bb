#!/usr/bin/env bash
# Makes everything that a release publishes. Run it with --help.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

usage() {
  cat <<'HELP'
deploy/release.sh [--cuda] [--aarch64] [--draft] [--notes] [FOLDER]

Makes the artifacts of the version in client/python/VERSION, in FOLDER (default: build/release-VERSION), which must be empty
or missing:

  voxserve-VERSION.tar.gz             the sources, as the last commit has them
  *.whl                               the wheels of deploy/wheel/build.sh; with --cuda, voxserve-server-cuda too; with
                                      --aarch64, voxserve-server for that machine too
  *.deb                               Debian packages of deploy/deb.sh, if the tree has that script
  NOTES.md                            the version's section of the changelog
  SHA256SUMS                          checksums of all of these: sha256sum --check SHA256SUMS

It refuses a tree with changes that are not committed, and a version whose section in .github/CHANGELOG.md has no date
("## 1.2.3 (2027-01-31)").

  --draft   takes such a tree and such a version too, to try out what a release would be
  --notes   makes NOTES.md and the sources alone, which takes a second
HELP
}

cuda=false aarch64=false draft=false notes=false folder=''
while (($# > 0)); do
  case $1 in
    --cuda) cuda=true ;;
    --aarch64) aarch64=true ;;
    --draft) draft=true ;;
    --notes) notes=true ;;
    -h | --help) usage && exit ;;
    -*) die "unknown option $1; see --help" ;;
    *)
      [[ -z $folder ]] || die "one folder, not two; see --help"
      folder=$1
      ;;
  esac
  shift
done
version=$(<"$ROOT/client/python/VERSION")
folder=${folder:-$BUILD/release-$version}
[[ ! -d $folder || -z $(ls -A "$folder") ]] || die "$folder is not empty"

section=$(awk -v version="$version" '/^## / { inside = ($2 == version) } inside' "$ROOT/.github/CHANGELOG.md")
[[ -n $section ]] || die ".github/CHANGELOG.md has no section \"## $version\""
if ! $draft; then
  dated="^## $version \\(20[0-9]{2}-[0-9]{2}-[0-9]{2}\\)\$"
  [[ $(head -n 1 <<<"$section") =~ $dated ]] ||
    die "the section of $version in .github/CHANGELOG.md has no date" "\"## $version ($(date +%F))\", or use --draft"
  [[ -z $(git -C "$ROOT" status --porcelain) ]] || die "there are changes that are not committed" "commit them, or use --draft"
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd -P)

step "The sources and the notes of $version"
git -C "$ROOT" archive --format=tar.gz --prefix="voxserve-$version/" --output="$folder/voxserve-$version.tar.gz" HEAD
sed '1d' <<<"$section" | sed '/./,$!d' >"$folder/NOTES.md"

if ! $notes; then
  "$ROOT/deploy/wheel/build.sh" --output "$folder"
  if $cuda; then "$ROOT/deploy/wheel/build.sh" --cuda --output "$folder"; fi
  if $aarch64; then "$ROOT/deploy/wheel/build.sh" --aarch64 --output "$folder"; fi
  "$ROOT/deploy/deb.sh" "$folder"
fi

step "The artifacts of $version in $folder"
sums=$(cd "$folder" && LC_ALL=C sha256sum -- *)
printf '%s\n' "$sums" >"$folder/SHA256SUMS"
(cd "$folder" && sha256sum --check --quiet SHA256SUMS && du -h --apparent-size -- * | sed 's/^/    /')
