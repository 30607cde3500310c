-- include: common
-- Running sandboxes of a node in mode `idle` that nothing keeps awake, quietest first. ARGV: prefix, node, now_ms, limit.
local quiet = {}
for _, id in ipairs(redis.call('SMEMBERS', key('ix', 'node', ARGV[2]))) do
  local r = redis.call('HMGET', key('sb', id), 'state', 'idle', 'end', 'op')
  if r[1] == 'running' and num(r[2]) > 0 and (r[4] or '') == '' then
    local act = redis.call('HGET', key('act', ARGV[2]), id)
    local last, awake = string.match(act or '', '^(%d+) .* (%S+)$')
    -- A lease is an end that lies beyond the idle time.
    local leased = num(r[3]) > math.max(num(ARGV[3]), num(last)) + num(r[2])
    if awake == '-' and not leased then quiet[#quiet + 1] = {num(last), id} end
  end
end
table.sort(quiet, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
local out = {}
for i = 1, math.min(#quiet, num(ARGV[4])) do out[i] = quiet[i][2] end
return out
