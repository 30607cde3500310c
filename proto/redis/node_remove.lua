-- include: common
-- A node leaves the fleet. ARGV: prefix, node, now_ms, quiet_ms (how long it must have been silent), op: look | remove.
-- Answer: "missing", or "alive" (it reported within quiet_ms), or the number of sandboxes that it holds; `remove` acts only when that is 0.
local node, now = ARGV[2], num(ARGV[3])
local h = key('node', node)
local at = redis.call('HGET', h, 'report_ms')
if not at then return 'missing' end
if now - num(at) < num(ARGV[4]) then return 'alive' end
local held = 0
for _, id in ipairs(redis.call('SMEMBERS', key('ix', 'node', node))) do
  local state = redis.call('HGET', key('sb', id), 'state') or 'killed'
  if state ~= 'killed' and state ~= 'failed' and state ~= 'lost' and state ~= 'killing' then held = held + 1 end
end
if ARGV[5] == 'remove' and held == 0 then
  -- Tombstones wait for nobody any more; a kill under way ends without one, because the node is unknown by then.
  for _, id in ipairs(redis.call('SMEMBERS', key('tomb', node))) do
    redis.call('HDEL', key('sb', id), 'unconfirmed')
    redis.call('PEXPIRE', key('sb', id), 3600000)
  end
  redis.call('DEL', h, key('act', node), key('res', node), key('tomb', node), key('ix', 'node', node))
  redis.call('ZREM', key('nodes'), node)
  redis.call('INCR', key('nodever'))
end
return text(held)
