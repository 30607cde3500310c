-- Helpers that the scripts share. P is the key prefix of the cell, for example "{c0}".
local P = ARGV[1]

local function key(...)
  return P .. ':' .. table.concat({...}, ':')
end

local function hash_of(name)
  local flat, out = redis.call('HGETALL', name), {}
  for i = 1, #flat, 2 do out[flat[i]] = flat[i + 1] end
  return out
end

local function num(s)
  return tonumber(s or '') or 0
end

-- Numbers above 2^53 never occur; %.0f keeps integers free of exponents.
local function text(n)
  return string.format('%.0f', n)
end

-- A node's entry changed: masters that follow the fleet ask for versions above the last one they saw.
local function node_changed(node)
  redis.call('ZADD', key('nodes'), redis.call('INCR', key('nodever')), node)
end

-- How many snapshots a team may have.
local function snapshots_max(team)
  local most = num(redis.call('HGET', key('team', team), 'max_snapshots'))
  return most > 0 and most or 1000
end

-- What a sandbox takes from its node: "<reserved MiB> <nominal MiB> <milli-CPU>".
local function reservation_parts(s)
  local mem, nominal, cpu = string.match(s, '^(%d+) (%d+) (%d+)$')
  return num(mem), num(nominal), num(cpu)
end

-- Counters move only when the entry in the hash really changed, so that nothing is released or taken twice.
-- `team` moves with the entry's existence; the node's hash keeps a count per team, by which masters spread them.
local function reservation_set(node, id, value, team)
  local res, h = key('res', node), key('node', node)
  local old = redis.call('HGET', res, id)
  if (old or '') == (value or '') then return end
  local m0, n0, c0, m1, n1, c1 = 0, 0, 0, 0, 0, 0
  if old then m0, n0, c0 = reservation_parts(old) end
  if value then
    m1, n1, c1 = reservation_parts(value)
    redis.call('HSET', res, id, value)
  else
    redis.call('HDEL', res, id)
  end
  redis.call('HINCRBY', h, 'r_mem', text(m1 - m0))
  redis.call('HINCRBY', h, 'r_nominal', text(n1 - n0))
  redis.call('HINCRBY', h, 'r_cpu', text(c1 - c0))
  redis.call('HINCRBY', h, 'r_count', (value and 1 or 0) - (old and 1 or 0))
  if (value ~= nil) ~= (old and true or false) and (team or '') ~= '' then
    if redis.call('HINCRBY', h, 't:' .. team, value and 1 or -1) <= 0 then redis.call('HDEL', h, 't:' .. team) end
  end
  node_changed(node)
end
