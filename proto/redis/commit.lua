-- include: states common
-- The one committer (DESIGN.md §3.1): compares (id, rev), checks the transition, and writes record, route, indexes, deadline, reservation,
-- quota, timeline and the event of the route together, or nothing.
--
-- ARGV: prefix, id, then pairs. Names: now, if_rev ("" = any, "0" = must not exist), to ("" = no change of state), gen, owner, op_ms,
-- ratio_mem, ratio_cpu (thousandths), mem (MiB to reserve), idem ("<team>:<key>"), idem_value, force (take resources without a check),
-- "=field" record, "~field" route, "#" index tag, "@kind" timeline event.
-- Answers: ok state gen rev | missing | conflict state gen rev | illegal from to | full resource have need | closed why |
-- quota resource limit used retry_ms | idem value | recovering until_ms
local id = ARGV[2]
local opt, set, route, tags, events = {}, {}, {}, {}, {}
for i = 3, #ARGV, 2 do
  local name, value = ARGV[i], ARGV[i + 1]
  local sigil = string.sub(name, 1, 1)
  if sigil == '=' then set[string.sub(name, 2)] = value
  elseif sigil == '~' then route[string.sub(name, 2)] = value
  elseif sigil == '#' then tags[#tags + 1] = value
  elseif sigil == '@' then events[#events + 1] = {string.sub(name, 2), value}
  else opt[name] = value end
end

local now = num(opt.now)
local sb, rt = key('sb', id), key('rt', id)
local old = hash_of(sb)
local from = old.state or '-'
local fresh = from == '-'
if opt.if_rev == '0' then
  if not fresh then return {'conflict', from, old.gen, old.rev} end
elseif fresh then
  return {'missing'}
elseif opt.if_rev ~= '' and opt.if_rev ~= old.rev then
  return {'conflict', from, old.gen, old.rev}
end

local moves = opt.to ~= ''
local to = moves and opt.to or from
local edge = 0
if moves then
  edge = EDGE[from] and EDGE[from][to]
  if not edge then return {'illegal', from, to} end
end
local gen_old = num(old.gen)
local gen = opt.gen and num(opt.gen) or gen_old
if (edge == 1 and gen <= gen_old) or gen < gen_old or (edge == 0 and not fresh and gen ~= gen_old) or gen < 1 then
  return {'illegal', from .. ' gen ' .. text(gen_old), to .. ' gen ' .. text(gen)}
end

local function now_value(field)
  if set[field] ~= nil then return set[field] end
  return old[field] or ''
end
local node, team = now_value('node'), now_value('team')
local spec = STATE[to]

-- For the team's metrics: per minute, in a hash per hour, "<most at once> <at its end> <starts>"; `first` is what the team had when the hour's
-- first entry was made.
local function team_minute(t, have, sign)
  local minute = math.floor(now / 60000)
  local hour, field = key('tm', t, text(math.floor(minute / 60))), text(minute % 60)
  local most, starts = string.match(redis.call('HGET', hour, field) or '', '^(%d+) %d+ (%d+)$')
  if not most then
    most, starts = math.max(0, have - sign), 0
    if redis.call('HSETNX', hour, 'first', text(most)) == 1 then redis.call('PEXPIRE', hour, 8 * 86400000) end
  end
  have = math.max(0, have)
  redis.call('HSET', hour, field, text(math.max(num(most), have)) .. ' ' .. text(have) .. ' ' .. text(num(starts) + (sign > 0 and 1 or 0)))
end

-- Everything that can refuse comes before the first write.
local creating = to == 'creating' and moves
local holds = to == 'creating' or to == 'running' or to == 'pausing' or to == 'resuming'
local counted = holds
local held_on = old.held or ''
if fresh and creating then
  local meta = redis.call('HMGET', key('meta'), 'state', 'until_ms')
  if meta[1] ~= 'ready' then return {'recovering', meta[2] or '0'} end
  if opt.idem then
    local known = redis.call('GET', key('idem', opt.idem))
    if known then return {'idem', known} end
  end
end

local vcpus, nominal = num(now_value('vcpus')), num(now_value('mem'))
if counted and old.counted ~= '1' and not opt.force then
  local t = redis.call('HMGET', key('team', team), 'max_sandboxes', 'max_vcpus', 'max_memory_mib', 'creates_per_s', 'blocked')
  local u = redis.call('HMGET', key('use', team), 'sandboxes', 'vcpus', 'memory_mib')
  if t[5] == '1' then return {'quota', 'blocked', '0', '0', '0'} end
  local wants = {{'sandboxes', num(t[1]), num(u[1]), 1}, {'vcpus', num(t[2]), num(u[2]), vcpus}, {'memory', num(t[3]), num(u[3]), nominal}}
  for _, w in ipairs(wants) do
    if w[2] > 0 and w[3] + w[4] > w[2] then return {'quota', w[1], text(w[2]), text(w[3]), '0'} end
  end
end

if holds and held_on ~= node and not opt.force then
  local n = redis.call('HMGET', key('node', node), 'cap_mem', 'cap_cpu', 'cap_count', 'r_mem', 'r_nominal', 'r_cpu', 'r_count', 'cordoned',
    'draining', 'pressure', 'status')
  if not n[1] then return {'closed', 'unknown node'} end
  if creating then
    if n[8] == '1' then return {'closed', 'cordoned'} end
    if n[9] == '1' then return {'closed', 'draining'} end
    if n[10] == '1' then return {'closed', 'memory pressure'} end
  end
  if n[11] ~= 'ready' then return {'closed', 'node is ' .. (n[11] or 'unknown')} end
  local cap = num(n[1])
  local checks = {
    {'memory', cap - num(n[4]), num(opt.mem)},
    {'memory', math.floor(cap * num(opt.ratio_mem) / 1000) - num(n[5]), nominal},
    {'cpu', math.floor(num(n[2]) * num(opt.ratio_cpu) / 1000) - num(n[6]), vcpus * 1000},
  }
  if num(n[3]) > 0 then checks[4] = {'sandboxes', num(n[3]) - num(n[7]), 1} end
  for _, c in ipairs(checks) do
    if c[3] > c[2] then return {'full', c[1], text(c[2]), text(c[3])} end
  end
end

if fresh and creating then
  local rate = num(redis.call('HGET', key('team', team), 'creates_per_s'))
  if rate > 0 then
    -- Token bucket in thousandths, as deep as one second's worth but at least one.
    local bucket = key('rate', team)
    local b = redis.call('HMGET', bucket, 'tokens', 'at')
    local depth = math.max(rate, 1) * 1000
    local tokens = b[1] and math.min(depth, num(b[1]) + math.max(0, now - num(b[2])) * rate) or depth
    if tokens < 1000 then
      return {'quota', 'creates', text(rate), text(rate), text(math.ceil((1000 - tokens) / rate))}
    end
    redis.call('HSET', bucket, 'tokens', text(tokens - 1000), 'at', text(now))
    redis.call('PEXPIRE', bucket, 10000)
  end
end

-- A node that was removed has nothing to confirm.
local now_unconfirmed = now_value('unconfirmed') ~= '' and redis.call('EXISTS', key('node', node)) == 1

-- From here on everything is written.
local rev = num(old.rev) + 1
set.state, set.gen, set.rev, set.upd = to, text(gen), text(rev), text(now)
if fresh and not set.created then set.created = text(now) end

if moves and set.op == nil and (old.op or '') ~= '' then set.op = '' end -- an operation ends with the state it ran in
local op = set.op ~= nil and set.op or (old.op or '')
if spec.transient or op ~= '' then
  if opt.owner then set.owner = opt.owner end
  if moves or opt.op_ms or set.op then
    local limit = opt.op_ms and num(opt.op_ms) or (spec.transient and spec.deadline or 60000)
    set.op_end = text(now + limit)
    redis.call('ZADD', key('op'), set.op_end, id)
  end
else
  set.owner, set.op_end = '', ''
  if old.op_end and old.op_end ~= '' then redis.call('ZREM', key('op'), id) end
end

-- Reservation and quota follow the state.
local keeps = holds or to == 'killing'
if held_on ~= '' and (held_on ~= node or not keeps) then
  reservation_set(held_on, id, nil, team)
  redis.call('HDEL', key('act', held_on), id)
  set.held = ''
end
if holds and held_on ~= node then
  reservation_set(node, id, text(num(opt.mem)) .. ' ' .. text(nominal) .. ' ' .. text(vcpus * 1000), team)
  set.held = node
end
if counted ~= (old.counted == '1') then
  local sign, use = counted and 1 or -1, key('use', team)
  team_minute(team, redis.call('HINCRBY', use, 'sandboxes', sign), sign)
  redis.call('HINCRBY', use, 'vcpus', text(sign * vcpus))
  redis.call('HINCRBY', use, 'memory_mib', text(sign * nominal))
  set.counted = counted and '1' or ''
end
if (old.node or '') ~= '' and old.node ~= node then redis.call('SREM', key('ix', 'node', old.node), id) end
if node ~= '' then
  if to == 'failed' or (to == 'killed' and not now_unconfirmed) then
    redis.call('SREM', key('ix', 'node', node), id)
  else
    redis.call('SADD', key('ix', 'node', node), id)
  end
end

-- Indexes: one sorted set per tag and view, all scores 0; the member sorts by start time, newest first, then by ID.
if #tags > 0 then set.tags = cmsgpack.pack(tags) end
local ix_view = spec.view == 'gone' and '' or spec.view
local ix_member = ix_view ~= '' and (string.format('%013.0f', 9999999999999 - num(now_value('started'))) .. id) or ''
if ix_view ~= (old.ix_view or '') or ix_member ~= (old.ix_member or '') then
  local all = cmsgpack.unpack(set.tags or old.tags or cmsgpack.pack({}))
  for _, tag in ipairs(all) do
    if (old.ix_view or '') ~= '' then redis.call('ZREM', key('ix', tag, old.ix_view), old.ix_member) end
    if ix_view ~= '' then redis.call('ZADD', key('ix', tag, ix_view), 0, ix_member) end
  end
  set.ix_view, set.ix_member = ix_view, ix_member
end

-- Deadline: only a running sandbox expires; the shard is the last character of the ID.
local ends = num(now_value('end'))
local dl = key('dl', string.sub(id, -1))
if to == 'running' and ends > 0 then redis.call('ZADD', dl, text(ends), id)
elseif from == 'running' then redis.call('ZREM', dl, id) end

local unset = {}
for field, value in pairs(set) do
  if value == '' then
    if old[field] then unset[#unset + 1] = field end
    set[field] = nil
  end
end
if #unset > 0 then redis.call('HDEL', sb, unpack(unset)) end
local flat = {}
for field, value in pairs(set) do flat[#flat + 1] = field; flat[#flat + 1] = value end
redis.call('HSET', sb, unpack(flat))

-- Route, and its event when state, generation or node changed.
if spec.view == 'gone' then
  if not fresh and STATE[from].view ~= 'gone' then redis.call('DEL', rt) end
elseif to ~= 'creating' then
  route.state, route.gen, route.node, route.end_ms = to, text(gen), node, text(ends)
  if moves or route.relay == nil then route.relay = redis.call('HGET', key('node', node), 'relay') or '' end
  local r = {}
  for field, value in pairs(route) do r[#r + 1] = field; r[#r + 1] = value end
  redis.call('HSET', rt, unpack(r))
end
if (moves and to ~= 'creating') or (old.node or '') ~= node and not fresh then
  redis.call('XADD', key('ev'), 'MAXLEN', '~', '65536', '*', 'kind', 'route', 'id', id, 'gen', text(gen), 'state', to)
end

local tl = key('tl', id)
for _, e in ipairs(events) do
  redis.call('LPUSH', tl, text(now) .. '\t' .. text(gen) .. '\t' .. e[1] .. '\t' .. (opt.trace or '') .. '\t' .. e[2])
end
if #events > 0 then redis.call('LTRIM', tl, 0, 99) end

if fresh and creating and opt.idem then
  redis.call('SET', key('idem', opt.idem), opt.idem_value, 'PX', 86400000)
  redis.call('HSET', sb, 'idem', opt.idem)
elseif old.idem and from == 'creating' and (to == 'failed' or to == 'killing') then
  redis.call('DEL', key('idem', old.idem))
end
if fresh and creating and (set.template or '') ~= '' then
  redis.call('HINCRBY', key('tpl', set.template), 'spawn_count', 1)
  redis.call('HSET', key('tpl', set.template), 'last_spawned', text(now))
end

-- How long what ended stays: the timeline a day, a tombstone until its node confirmed and at least an hour.
if spec.final then
  redis.call('PEXPIRE', tl, 86400000)
  if to == 'killed' and now_unconfirmed then
    redis.call('SADD', key('tomb', node), id)
    redis.call('PERSIST', sb)
  elseif to == 'killed' then
    redis.call('SREM', key('tomb', node), id)
    redis.call('PEXPIRE', sb, 3600000)
  else
    redis.call('PEXPIRE', sb, to == 'lost' and 604800000 or 86400000)
  end
elseif not fresh and STATE[from].final then
  redis.call('PERSIST', sb)
  redis.call('PERSIST', tl)
end
return {'ok', to, text(gen), text(rev)}
