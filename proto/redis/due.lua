-- include: common
-- What is due in the shards that this lifecycle instance holds. Read-only: the proposal to a master carries the rev seen here.
-- ARGV: prefix, instance, now_ms, limit, shard … (its character, then how many of those that are due to pass over, because the caller can do nothing
-- about them now). Answer: flat groups of id, rev, action, value.
-- Actions: kill, pause (expired) and extend (mode idle, active since; value = the new end).
local me, now, limit = ARGV[2], num(ARGV[3]), num(ARGV[4])
local out = {}
for i = 5, #ARGV do
  local shard, skip = string.sub(ARGV[i], 1, 1), num(string.sub(ARGV[i], 2))
  if redis.call('GET', key('claim', shard)) == me then
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('dl', shard), '-inf', text(now), 'LIMIT', skip, limit)) do
      local r = redis.call('HMGET', key('sb', id), 'rev', 'auto_pause', 'idle', 'node', 'state', 'end')
      if r[1] and r[5] == 'running' then
        local action, value = r[2] == '1' and 'pause' or 'kill', r[6]
        if num(r[3]) > 0 then
          action = 'pause'
          local act = redis.call('HGET', key('act', r[4] or ''), id)
          local last = act and num(string.match(act, '^(%d+)')) or 0
          if last + num(r[3]) > now then action, value = 'extend', text(last + num(r[3])) end
        end
        out[#out + 1] = id
        out[#out + 1] = r[1]
        out[#out + 1] = action
        out[#out + 1] = value
      end
    end
  end
end
return out
