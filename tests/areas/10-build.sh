# Builds everything with warnings as errors; checks formatting and shell scripts.
# limit: 1500 s
set -u
cd "$CUBE_ROOT" || exit 1
if out=$(./cube build 2>&1); then echo "PASS build"; else
    printf '%s\n' "$out"
    echo "FAIL build: $(printf '%s\n' "$out" | grep -m 1 -E 'error|FAILED' | cut -c 1-300)"
    exit 0
fi
bad=$(git ls-files '*.c' '*.h' | grep -v '\.bpf\.c$' | xargs clang-format-14 --dry-run 2>&1 | grep -c 'clang-format-violations')
[ "$bad" -eq 0 ] && echo "PASS formatting" || echo "FAIL formatting: $bad places differ from .clang-format"
scripts=$(git ls-files | xargs awk 'FNR == 1 && /^#!\/bin\/(ba)?sh/ { print FILENAME } { nextfile }')
if out=$(shellcheck -f gcc -S error $scripts); then echo "PASS shellcheck"; else echo "FAIL shellcheck: $(printf '%s\n' "$out" | head -n 3 | tr '\n' ' ')"; fi
long=$(git ls-files '*.c' '*.h' | xargs wc -l | awk '$2 != "total" && ($1 > 600 || ($2 ~ /(^|\/)main\.c$/ && $1 > 150)) { printf "%s (%d) ", $2, $1 }')
[ -z "$long" ] && echo "PASS no file over 600 lines, no main.c over 150" || echo "FAIL too long: $long"
