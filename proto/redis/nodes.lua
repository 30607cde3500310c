-- include: common
-- The fleet since a version, for masters that follow it; marks nodes whose reports stopped. ARGV: prefix, since_version, now_ms, stale_ms, lost_ms.
-- Answer: version, names of all nodes (joined by spaces), names lost by this call, then per changed node: name, flat hash.
local now, stale, lost = num(ARGV[3]), num(ARGV[4]), num(ARGV[5])
-- Nodes are also silent while nobody listens (Redis or every master was away, which a pause in these calls shows): that time is held against no
-- node, else an outage longer than lost_ms would end in the loss of everything that ran on through it.
local heard = redis.call('HMGET', key('heard'), 'at', 'since')
local since = num(heard[2])
if now - num(heard[1]) > stale / 2 then since = now end
redis.call('HSET', key('heard'), 'at', text(math.max(now, num(heard[1]))), 'since', text(since))

local all, gone = redis.call('ZRANGE', key('nodes'), 0, -1), {}
for _, n in ipairs(all) do
  local r = redis.call('HMGET', key('node', n), 'report_ms', 'status')
  local age, status = now - math.max(num(r[1]), since), r[2]
  local should = status
  if age > lost then should = 'lost'
  elseif age > stale and status == 'ready' then should = 'unhealthy' end
  if should ~= status then
    redis.call('HSET', key('node', n), 'status', should)
    node_changed(n)
    if should == 'lost' then gone[#gone + 1] = n end
  end
end
local out = {redis.call('GET', key('nodever')) or '0', table.concat(all, ' '), table.concat(gone, ' ')}
for _, n in ipairs(redis.call('ZRANGEBYSCORE', key('nodes'), '(' .. ARGV[2], '+inf')) do
  out[#out + 1] = n
  out[#out + 1] = redis.call('HGETALL', key('node', n))
end
return out
