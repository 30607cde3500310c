#!/bin/bash
# cube-dns behind CubeVS: forwards, caches, truncates, speaks TCP, limits each sandbox, refuses answers into denied ranges.
set -u
. "$CUBE_ROOT/tests/net/bed.sh"
trap bed_down EXIT
bed_up
cvs load && cvs attach cbt1 1 && cvs attach cbt2 2 || { echo "FAIL net: loading and attaching"; exit 0; }
serve "$world" python3 "$CUBE_ROOT/tests/net/dnskit.py" serve 8.8.8.8
mkdir -p "$pins_root/run/dns"
cat > "$pins_root/cube.yaml" <<YAML
common:
  run_dir: $pins_root/run
dns:
  listen: 198.19.0.1:53
  admin_listen: 127.0.0.1:3144
  upstreams: 8.8.8.8
  slot_net: 198.19.128.0
  rate: 50
YAML
serve "$node" "$CUBE_BUILD_DIR/node/dns/cube-dns" --config "$pins_root/cube.yaml" --user 59005:59005
dns=${servers##* }
ask() { in_ns "$1" timeout 20 python3 "$CUBE_ROOT/tests/net/dnskit.py" ask 169.254.0.22 "${@:2}"; }
for _ in $(seq 600); do in_ns "$node" curl -s -o /dev/null http://127.0.0.1:3144/readyz && break; sleep 0.05; done
for _ in $(seq 600); do # the world's name server is a program that starts, too
    [ "$(in_ns "$node" timeout 5 python3 "$CUBE_ROOT/tests/net/dnskit.py" ask 8.8.8.8 other.test)" = "0 1.1.1.1" ] && break
    sleep 0.05
done
is() { [ "$3" = "$2" ] && echo "PASS net: $1" || echo "FAIL net: $1: got '$3', want '$2'"; }
is "a name is resolved at the gateway" "0 93.184.216.34" "$(ask "$guest1" www.allowed.test)"
is "over TCP too" "0 93.184.216.34" "$(ask "$guest1" www.allowed.test tcp)"
is "the second sandbox gets its own answer" "0 93.184.216.34" "$(ask "$guest2" WWW.Allowed.Test)"
is "three questions were one to the resolver" "0 93.184.0.1" "$(ask "$guest1" count.test)"
is "an unknown name is NXDOMAIN" "3" "$(ask "$guest1" nothing.test)"
is "an answer into a private range is refused" "3" "$(ask "$guest1" rebind.test)"
is "also when only one of its addresses is" "3" "$(ask "$guest1" mixed.test)"
is "a long answer is cut over UDP" "0 truncated" "$(ask "$guest1" other.test >/dev/null; ask "$guest1" big.test | cut -c1-11)"
# All at once: one after the other, a busy machine may itself keep them below the rate.
case "$(in_ns "$guest1" timeout 60 python3 "$CUBE_ROOT/tests/net/dnskit.py" flood 169.254.0.22 www.allowed.test 200)" in *"x 5"*) echo "PASS net: a flood of questions meets the sandbox's rate";; *) echo "FAIL net: no limit on questions";; esac
is "while another sandbox is answered" "0 1.1.1.1" "$(ask "$guest2" other.test)"
# At a rate that refuses nothing, so that all are asked before the first is given up (4.5 s).
kill "$dns"
wait "$dns"
sed -i 's/rate: 50/rate: 100000/; s/3144/3145/' "$pins_root/cube.yaml"
serve "$node" "$CUBE_BUILD_DIR/node/dns/cube-dns" --config "$pins_root/cube.yaml" --user 59005:59005
for _ in $(seq 600); do in_ns "$node" curl -s -o /dev/null http://127.0.0.1:3145/readyz && break; sleep 0.05; done
refused=$(in_ns "$guest1" timeout 60 python3 "$CUBE_ROOT/tests/net/dnskit.py" dead 169.254.0.22 200)
[ "$refused" -ge 50 ] && [ "$refused" -le 72 ] && echo "PASS net: a sandbox has at most 128 questions open" || echo "FAIL net: of 200 questions that nobody answers $refused were refused"
log() { grep -c "$1" "$pins_root/server.log"; }
check_log() { [ "$(log "$2")" -ge 1 ] && echo "PASS net: $1" || echo "FAIL net: $1: no line like '$2'"; }
check_log "names are logged with their sandbox" "slot 1 asked for www.allowed.test, type 1: answered"
check_log "from the cache, too" "slot 2 asked for www.allowed.test, type 1: answered from the cache"
check_log "and what was denied" "slot 1 asked for rebind.test, type 1: denied"
[ "$(log 'slot 1 asked')" -lt 200 ] && echo "PASS net: a flood of questions does not fill the log" || echo "FAIL net: $(log 'slot 1 asked') lines in the log"
curl=$(in_ns "$node" curl -s http://127.0.0.1:3145/metrics)
case "$curl" in *cube_dns_denied_answers_total*) echo "PASS net: cube-dns shows its metrics";; *) echo "FAIL net: no metrics of cube-dns";; esac
