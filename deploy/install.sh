#!/usr/bin/env bash
# Installs the packages that voxserve needs and this machine lacks. Run it with --help.
set -euo pipefail
# shellcheck source=deploy/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

usage() {
  cat <<'HELP'
deploy/install.sh [SET...]            install the missing packages of these sets, and the Python client
deploy/install.sh --list SET...       print the packages of these sets
deploy/install.sh --runtime-packages BINARY...
                                      print the packages that these binaries need to run, and install nothing

Sets (deploy/packages.txt): build, python, test, wheel, tidy, cross, tsan, clang. Default: build python.
The set "python" also makes the virtual environment build/venv with the package of client/python, and installs the
package again only when its sources have changed. For tests it also installs tritonclient, if PyPI has it for this
Python. The set "build" also fetches NVIDIA's package of cuBLAS (from PyPI, 0.4 GB) into the user's cache, if the CUDA
toolkit came without it; with VOXSERVE_CUDA=OFF it does not. The set "tsan" also builds the system's Abseil with
ThreadSanitizer into the user's cache, from apt's source package (2 MB, 4 minutes on 2 cores).

Packages come from apt, on Debian 12 and Ubuntu 24.04. The script asks for root (through sudo) only to install
packages, and not at all if no package is missing.
HELP
}

packages() {  # of these sets
  awk -v sets=" $* " '!/^#/ && NF && index(sets, " " $1 " ") { print $2 }' "$ROOT/deploy/packages.txt"
}

missing() {  # those of the given packages that are not installed
  local package
  for package in "$@"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || echo "$package"
  done
}

# The packages that own the shared libraries of the binaries; apt adds their own dependencies. CUDA toolkit libraries
# are left out: they come with NVIDIA's image, which a GPU needs, or from the cache.
runtime_packages() {
  local names libraries name path
  names=$(objdump -p "$@" | sed -n 's/^ *NEEDED *//p' | sort -u)
  libraries=$(ldd "$@")
  for name in $names; do
    path=$(awk -v name="$name" '$1 == name && $3 ~ /^\// && !found++ { print $3 }' <<<"$libraries")
    [[ -n $path ]] || continue  # the loader itself has no path
    [[ $(realpath "$path") != @(/usr/local/cuda*|"$CUBLAS"|"${VOXSERVE_CUBLAS_ROOT:-$CUBLAS}")/* ]] || continue
    # dpkg knows a library under the path in its package; on a system with a merged /usr the linker may use another
    # path.
    { dpkg-query -S "$path" || dpkg-query -S "/usr$path" || dpkg-query -S "${path#/usr}"; } 2>/dev/null |
      sed -n '1s/:.*//p' | grep . || die "no package owns $path, which is needed to run"
  done | sort -u
}

check_sets() {
  local set
  for set in "$@"; do
    [[ " build python test wheel tidy cross tsan clang " == *" $set "* ]] ||
      die "unknown set '$set'; the sets are: build, python, test, wheel, tidy, cross, tsan, clang"
  done
}

as_root() {
  if ((EUID == 0)); then
    "$@"
  elif [[ -t 0 ]]; then
    sudo "$@"
  else
    sudo -n "$@"
  fi
}

install_packages() {
  local wanted absent size
  mapfile -t wanted < <(packages "$@")
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    warn "This machine has no apt. voxserve is built on Debian 12 and Ubuntu 24.04; elsewhere, install equivalents of:"
    warn "${wanted[*]}"
    return
  fi
  mapfile -t absent < <(missing "${wanted[@]}")
  if ((${#absent[@]} == 0)); then
    quiet "all ${#wanted[@]} packages are installed"
    return
  fi

  # shellcheck disable=SC1091
  local system
  system=$(. /etc/os-release && echo "${ID:-}-${VERSION_ID:-}")
  case $system in
    debian-12 | ubuntu-24.04) ;;
    *) warn "This is $system; voxserve is built and tested on Debian 12 and Ubuntu 24.04. Trying its packages." ;;
  esac
  local by_hand="apt-get update && apt-get install -y --no-install-recommends ${absent[*]}"
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "${#absent[@]} packages and sudo are missing. As root, run:" "$by_hand"
    say "Root is needed to install ${#absent[@]} packages: sudo may ask for your password."
    as_root true || die "sudo refused. As root, run:" "$by_hand"
  fi
  say "missing: ${absent[*]}"
  quiet "apt-get update (10 s)"
  logged "$BUILD/logs/apt-update.log" as_root env DEBIAN_FRONTEND=noninteractive apt-get update ||
    warn "apt-get update failed; continuing with the existing lists"
  size=$(apt-get install -y --no-install-recommends --print-uris "${absent[@]}" 2>/dev/null |
    awk -v quote="'" 'index($0, quote) == 1 { count++; bytes += $3 }
                      END { printf "%d packages, %d MB to download", count, bytes / 1e6 }') || size=''
  quiet "apt-get install: ${size:-a few hundred MB} (1 to 5 minutes)"
  logged "$BUILD/logs/apt-install.log" as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${absent[@]}" ||
    die "apt could not install the packages." "By hand: $by_hand"
}

# The system's own Python has the venv module that was just installed; another Python in PATH may lack it.
system_python() {
  if [[ -x /usr/bin/python3 ]]; then echo /usr/bin/python3; else command -v python3 || die "no python3"; fi
}

# The virtual environment has its own pip, since the system's Python may have none. It is moved into place at the end,
# so it exists completely or not at all.
install_cublas() {
  local venv=$BUILD/venv-cublas python
  python=$(system_python)
  say "the CUDA toolkit has no cuBLAS: fetching NVIDIA's package nvidia-cublas $CUBLAS_VERSION (0.4 GB, a minute or two)"
  logged "$BUILD/logs/venv-cublas.log" "$python" -m venv --clear "$venv" || die "no virtual environment could be made"
  rm -rf "$CUBLAS.partial"
  logged "$BUILD/logs/pip-cublas.log" "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    --no-cache-dir --no-deps --only-binary :all: --target "$CUBLAS.partial" "nvidia-cublas==$CUBLAS_VERSION" ||
    die "pip could not fetch cuBLAS." "Install the toolkit's own (package libcublas-dev-13-0 of NVIDIA's repository)."
  rm -rf "$CUBLAS" "$venv"
  mv "$CUBLAS.partial" "$CUBLAS"
}

# Builds the source package of the installed Abseil. It contains the distribution's options, so our code compiles in the
# same way, and the names of its shared libraries, so the system's gRPC loads these. apt reads the source packages'
# locations from a folder made of its own package sources: the system's settings do not change, and root is not needed.
# The result is moved into place at the end, so it exists completely or not at all.
install_tsan_abseil() {
  local out version work=$BUILD/abseil-tsan file apt
  out=$(tsan_abseil)
  if [[ -d $out ]]; then
    quiet "Abseil with ThreadSanitizer is in $out"
    return
  fi
  version=$(dpkg-query -W -f='${source:Package}=${source:Version}' libabsl-dev) || die "libabsl-dev is not installed"
  say "building $version with ThreadSanitizer (2 MB to download, 4 minutes on 2 cores)"
  rm -rf "$work" "$out.partial"
  mkdir -p "$work"/{sources,lists/partial,cache/archives/partial}
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [[ ! -f $file ]] || sed -n 's/^[[:space:]]*deb[[:space:]]/deb-src /p' "$file" >"$work/sources/${file##*/}"
  done
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ ! -f $file ]] || sed 's/^Types:.*/Types: deb-src/' "$file" >"$work/sources/${file##*/}"
  done
  apt=(apt-get -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$work/sources"
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache")
  logged "$BUILD/logs/abseil-sources.log" "${apt[@]}" update ||
    warn "not every package source could be read; continuing with the others"
  (cd "$work" && logged "$BUILD/logs/abseil-source.log" "${apt[@]}" source "$version") ||
    die "apt could not fetch the source package $version"
  logged "$BUILD/logs/abseil-configure.log" cmake -S "$(echo "$work"/abseil-*/)" -B "$work/build" -G Ninja \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_STANDARD=20 -DABSL_PROPAGATE_CXX_STD=ON -DBUILD_TESTING=OFF \
    -DBUILD_SHARED_LIBS=ON -DCMAKE_CXX_FLAGS='-fsanitize=thread -fno-omit-frame-pointer' \
    -DCMAKE_INSTALL_PREFIX="$out.partial" -DCMAKE_INSTALL_LIBDIR=lib || die "CMake could not configure Abseil"
  logged "$BUILD/logs/abseil-build.log" ninja -C "$work/build" -j "$(cores)" install || die "Abseil could not be built"
  rm -rf "$work"
  mv "$out.partial" "$out"
}

install_python_client() {
  local venv=$BUILD/venv python source=$ROOT/client/python stamp
  python=$(system_python)
  stamp=$(cd "$source" && { "$python" --version && find . -type f -not -path '*/__pycache__/*' -not -path '*.egg-info/*' \
    -not -path './tests/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum; } | sha256sum)
  if [[ -f $venv/stamp && $(<"$venv/stamp") == "$stamp" ]]; then
    quiet "the Python client is in build/venv"
    return
  fi
  quiet "the Python client goes into build/venv (30 s the first time)"
  if [[ ! -x $venv/bin/python ]] || [[ $("$venv/bin/python" --version 2>&1) != $("$python" --version) ]]; then
    logged "$BUILD/logs/venv.log" "$python" -m venv --clear "$venv" || die "no virtual environment could be made"
  fi
  # Installs from a copy, since setuptools writes into the folder that it builds. The copy has no links, which would
  # lead elsewhere.
  rm -rf "$BUILD/python"
  cp -R "$source" "$BUILD/python"
  # Two steps: first missing requirements, then the package again even if its version is unchanged.
  local install=("$venv/bin/python" -m pip install --disable-pip-version-check --no-input)
  # Triton's client is not there for every Python. Its tests are skipped without it.
  logged "$BUILD/logs/pip.log" "${install[@]}" "$BUILD/python[test,manifests,triton]" 2>/dev/null ||
    logged "$BUILD/logs/pip.log" "${install[@]}" "$BUILD/python[test,manifests]" ||
    die "pip could not install the Python client's requirements"
  logged "$BUILD/logs/pip-client.log" "${install[@]}" --no-deps --force-reinstall "$BUILD/python" ||
    die "pip could not install the Python client"
  printf '%s\n' "$stamp" >"$venv/stamp"
}

case ${1:-} in
  -h | --help)
    usage
    ;;
  --list)
    shift
    check_sets "$@"
    packages "$@"
    ;;
  --runtime-packages)
    shift
    runtime_packages "$@"
    ;;
  -*)
    die "unknown option $1; see --help"
    ;;
  *)
    (($# > 0)) || set -- build python
    check_sets "$@"
    install_packages "$@"
    # (nvcc answers this, and it needs the compiler that the set has just installed.)
    if [[ " $* " == *" build "* ]] && wants_cublas; then
      install_packages python
      install_cublas
    fi
    if [[ " $* " == *" tsan "* && -z ${VOXSERVE_ABSEIL_ROOT:-} ]]; then install_tsan_abseil; fi
    if [[ " $* " == *" python "* ]]; then install_python_client; fi
    ;;
esac
