# Builds with sanitizers in directories of their own; source it. Both print the FAIL line themselves.
# shellcheck shell=bash

# sanitized_setup LABEL BUILD_DIR SANITIZERS TSAN_SHIMS: configures the directory, unless it is already.
sanitized_setup() {
    [ -f "$2/build.ninja" ] && return 0
    CC="ccache gcc" meson setup "$2" -Db_sanitize="$3" -Db_lundef=false -Dwerror=false -Dtsan_shims="$4" >/dev/null && return 0
    echo "FAIL $1: meson setup"
    return 1
}

# sanitized_build LABEL BUILD_DIR TARGET...
sanitized_build() {
    local label=$1 dir=$2
    shift 2
    nice -n 5 ninja -j2 -C "$dir" "$@" && return 0
    echo "FAIL $label: build"
    return 1
}
