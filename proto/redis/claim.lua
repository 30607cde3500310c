-- include: common
-- Shards of the deadlines (one per last character of the ID) shared among lifecycle instances: each keeps its claims alive and takes free
-- ones up to its share; what is above the share is let go, so that a new instance finds some.
-- ARGV: prefix, instance, now_ms, ttl_ms. Answer: the shards held.
local me, now, ttl = ARGV[2], num(ARGV[3]), num(ARGV[4])
local alive = math.max(1, redis.call('ZCOUNT', key('svc', 'lifecycle'), text(now), '+inf'))
local share = math.ceil(36 / alive)
local held, free = {}, {}
for c in string.gmatch('0123456789abcdefghijklmnopqrstuvwxyz', '.') do
  local owner = redis.call('GET', key('claim', c))
  if owner == me then
    if #held < share then
      redis.call('PEXPIRE', key('claim', c), ttl)
      held[#held + 1] = c
    else
      redis.call('DEL', key('claim', c))
    end
  elseif not owner then
    free[#free + 1] = c
  end
end
for _, c in ipairs(free) do
  if #held >= share then break end
  redis.call('SET', key('claim', c), me, 'PX', ttl)
  held[#held + 1] = c
end
return held
