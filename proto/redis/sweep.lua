-- include: common
-- Transient states whose owner died or whose deadline passed change hands: the caller becomes the owner (rev grows, so that a late answer of the old
-- owner cannot commit) and gets the work. Fields and rev only: no state changes here.
-- ARGV: prefix, instance, now_ms, limit, lease_ms. What the caller owns already is answered as well, unchanged: it
-- knows which of them it still works on.
local me, now, limit, lease = ARGV[2], num(ARGV[3]), num(ARGV[4]), num(ARGV[5])
local alive, out = {}, {}
for _, m in ipairs(redis.call('ZRANGEBYSCORE', key('svc', 'master'), text(now), '+inf')) do
  alive[string.match(m, '^%S+')] = true
end
if not alive[me] then return out end
for _, id in ipairs(redis.call('ZRANGE', key('op'), 0, 4095)) do
  if #out >= limit then break end
  local sb = key('sb', id)
  local r = redis.call('HMGET', sb, 'owner', 'op_end', 'state')
  if not r[3] then
    redis.call('ZREM', key('op'), id)
  elseif r[1] == me and num(r[2]) > now then
    out[#out + 1] = id
  elseif not alive[r[1] or ''] or num(r[2]) <= now then
    redis.call('HSET', sb, 'owner', me, 'op_end', text(now + lease))
    redis.call('HINCRBY', sb, 'rev', 1)
    redis.call('ZADD', key('op'), text(now + lease), id)
    out[#out + 1] = id
  end
end
return out
