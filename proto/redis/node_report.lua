-- include: common
-- A report of a node: capacity, activity and resident-based reservations are written; what disagrees with the records is answered, so that the
-- master can act on it. No record is changed here.
-- ARGV: prefix, node, now_ms, instance, full (0|1), n (number of field values), field, value …, then per sandbox: id, class (running|paused|ended),
-- gen, rss_mib, last_activity_ms, awake, streams, cpu_milli, last_answer_ms, healthy, guest_oom_kills.
-- Answer: flat pairs id, verdict. unknown = no record, elsewhere = another node has it, differs = state or gen disagree, forget = it ended long
-- ago, absent = recorded here but missing in a full report, tomb = waits for this node to confirm its end, oom = processes
-- in the guest were killed for want of memory.
local node, now, full = ARGV[2], num(ARGV[3]), ARGV[5] == '1'
local h, act = key('node', node), key('act', node)
local out, seen = {}, {}
redis.call('HSET', h, 'report_ms', ARGV[3], 'master', ARGV[4], 'status', 'ready')
local at = 7
for _ = 1, num(ARGV[6]) do
  redis.call('HSET', h, ARGV[at], ARGV[at + 1])
  at = at + 2
end
node_changed(node)

local function verdict(id, class, gen, r)
  local state = r[1]
  if not state then return 'unknown' end
  if state == 'killed' or state == 'failed' then return 'forget' end
  if state == 'killing' then return nil end
  if r[3] ~= node then return 'elsewhere' end
  local have = num(r[2])
  if state == 'creating' or state == 'resuming' then return gen > have and 'differs' or nil end
  if class == 'paused' and state == 'paused' and gen <= have then return nil end -- a refused resume used up generations
  if gen ~= have then return 'differs' end
  if state == 'pausing' then return class == 'ended' and 'differs' or nil end
  if class == state then return nil end
  return 'differs'
end

for i = at, #ARGV, 11 do
  local id, class, gen = ARGV[i], ARGV[i + 1], num(ARGV[i + 2])
  local r = redis.call('HMGET', key('sb', id), 'state', 'gen', 'node', 'held', 'guest_oom')
  seen[id] = true
  local v = verdict(id, class, gen, r)
  if v then
    out[#out + 1] = id
    out[#out + 1] = v
  elseif class == 'running' and r[3] == node then
    if num(ARGV[i + 10]) > num(r[5]) then
      out[#out + 1] = id
      out[#out + 1] = 'oom'
    end
    local awake = ARGV[i + 5] == '' and '-' or ARGV[i + 5]
    local old, since = redis.call('HGET', act, id), now
    if old then
      local old_since, old_awake = string.match(old, '^%d+ (%d+) .* (%S+)$')
      if old_since and (old_awake == '-') == (awake == '-') then since = num(old_since) end
    end
    redis.call('HSET', act, id, table.concat({ARGV[i + 4], text(since), ARGV[i + 6], ARGV[i + 7], ARGV[i + 3], ARGV[i + 8], ARGV[i + 9], awake}, ' '))
    local rss = num(ARGV[i + 3])
    if r[4] == node and rss > 0 then
      local held = redis.call('HGET', key('res', node), id)
      if held then
        local mem, nominal, cpu = reservation_parts(held)
        local need = math.min(math.max(32, rss + math.max(16, math.floor(rss / 8))), nominal + 64)
        if math.abs(need - mem) >= 16 then
          reservation_set(node, id, text(need) .. ' ' .. text(nominal) .. ' ' .. text(cpu), nil)
        end
      end
    end
  elseif class ~= 'running' then
    redis.call('HDEL', act, id)
  end
end

if full then
  for _, id in ipairs(redis.call('SMEMBERS', key('ix', 'node', node))) do
    if not seen[id] then
      local state = redis.call('HGET', key('sb', id), 'state')
      if state == 'running' or state == 'paused' then
        out[#out + 1] = id
        out[#out + 1] = 'absent'
      elseif not state then
        redis.call('SREM', key('ix', 'node', node), id)
      end
    end
  end
  for _, id in ipairs(redis.call('SMEMBERS', key('tomb', node))) do
    out[#out + 1] = id
    out[#out + 1] = 'tomb'
  end
end
return out
