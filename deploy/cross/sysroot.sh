#!/usr/bin/env bash
# Makes the folder of arm64 libraries and headers (the "sysroot") that the CMake preset "aarch64" compiles and links
# against. Run it with --help.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../steps.sh"

usage() {
  cat <<'HELP'
deploy/cross/sysroot.sh          make build/sysroot-aarch64, if packages.txt changed since it was made
deploy/cross/sysroot.sh --list   print the packages that are asked for, and download nothing

The packages are those of the sets "build" and "test" in deploy/packages.txt that have headers and libraries (their names
end in -dev), with all that they need, for arm64. apt fetches them from this machine's package sources (Debian 12: 45 MB)
into a folder of their own: nothing is installed, this machine's list of packages does not change, and root is not needed.
The compiler and the programs that run at build time (CMake, Ninja, protoc, grpc_cpp_plugin) stay this machine's, so its
distribution must be the same; the set "cross" has the compiler and qemu:

  deploy/install.sh build test cross
HELP
}

SYSROOT=$BUILD/sysroot-aarch64

# gRPC's CMake package asks for its plugins as files, which are not run.
wanted() { "$ROOT/deploy/install.sh" --list build test | grep -e '-dev$' -e '^protobuf-compiler-grpc$'; }

make_sysroot() {
  local work=$BUILD/sysroot-aarch64.partial packages stamp apt file link target
  mapfile -t packages < <(wanted)
  stamp="$(. /etc/os-release && echo "$ID $VERSION_ID") ${packages[*]}"
  if [[ -f $SYSROOT/stamp && $(<"$SYSROOT/stamp") == "$stamp" ]]; then
    quiet "the arm64 packages are in $SYSROOT"
    return
  fi
  step "arm64 libraries and headers for $SYSROOT"
  rm -rf "$work"
  mkdir -p "$work"/{root/usr/{lib,bin,sbin},state/lists/partial,cache/archives/partial}
  # With no list of installed packages, apt chooses every package that is needed, down to the C library.
  touch "$work/state/status"
  apt=(apt-get -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State=$work/state"
    -o "Dir::State::status=$work/state/status" -o "Dir::Cache=$work/cache" -o APT::Install-Recommends=false
    -o APT::Sandbox::User= -o Debug::NoLocking=true)
  quiet "apt-get update (20 s)"
  logged "$BUILD/logs/sysroot-update.log" "${apt[@]}" update ||
    warn "not every package source has arm64 packages; continuing with the others"
  quiet "fetching ${#packages[@]} packages and what they need (10 s to 5 minutes)"
  logged "$BUILD/logs/sysroot-fetch.log" "${apt[@]}" install -y --download-only "${packages[@]}" ||
    die "apt could not fetch arm64 packages." "Ubuntu keeps them at ports.ubuntu.com, which must be one of apt's sources."
  # The programs of the packages would not run here. /lib is a link to /usr/lib, as in the distribution.
  for link in lib bin sbin; do ln -s "usr/$link" "$work/root/$link"; done
  for file in "$work"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$file" |
      tar -x -C "$work/root" --keep-directory-symlink --exclude './usr/share/doc/*' --exclude './usr/share/man/*'
  done
  # Absolute links would lead to this machine's own files.
  while read -r link; do
    target=$(readlink "$link")
    ln -sfnr "$work/root$target" "$link"
  done < <(find "$work/root" -type l -lname '/*')
  printf '%s\n' "$stamp" >"$work/root/stamp"
  rm -rf "$SYSROOT"
  mv "$work/root" "$SYSROOT"
  rm -rf "$work"
  say "$(find "$SYSROOT" -type f | wc -l) files, $(du -sm "$SYSROOT" | cut -f1) MB in $SYSROOT"
}

case ${1:-} in
  -h | --help) usage ;;
  --list) wanted ;;
  '') make_sysroot ;;
  *) die "unknown option $1; see --help" ;;
esac
