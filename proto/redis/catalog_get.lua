-- include: common
-- Reads of the catalog. A template found by name comes with the idle time that its team gives by default. ARGV: prefix, op, … ops: key sha · keys team · team id · template team slug name tag · templates team · running · snapshots team (how many, and the most).
-- Bare names: the team's own namespace first, then global names, then template IDs (contracts/e2b.md §1.5).
local op = ARGV[2]
if op == 'key' then
  local k = redis.call('HGETALL', key('key', ARGV[3]))
  if #k == 0 then return {} end
  return {k, redis.call('HGETALL', key('team', redis.call('HGET', key('key', ARGV[3]), 'team')))}
elseif op == 'keys' then
  local out, ids = {}, redis.call('HGETALL', key('keys', ARGV[3]))
  for i = 2, #ids, 2 do out[#out + 1] = redis.call('HGETALL', key('key', ids[i])) end
  return out
elseif op == 'team' then
  return redis.call('HGETALL', key('team', ARGV[3]))
elseif op == 'snapshots' then
  return {redis.call('SCARD', key('snaps', ARGV[3])), snapshots_max(ARGV[3])}
elseif op == 'running' then
  local out = {}
  for _, t in ipairs(redis.call('SMEMBERS', key('teams'))) do
    local n = redis.call('HGET', key('use', t), 'sandboxes')
    if n and n ~= '0' then out[#out + 1] = {t, n} end
  end
  return out
end

local function template(id)
  return redis.call('HMGET', key('tpl', id), 'pb', 'team', 'public', 'spawn_count', 'last_spawned')
end

local function visible(t, team)
  return t[1] and (team == '' or t[2] == team or t[2] == '' or t[3] == '1')
end

if op == 'template' then
  local team, slug, name, tag = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
  local idle = team ~= '' and redis.call('HGET', key('team', team), 'idle_ms') or '0'
  if slug == '' and team ~= '' then slug = redis.call('HGET', key('team', team), 'slug') or '' end
  local suffix = (tag == '' or tag == 'default') and '' or (':' .. tag)
  local tries
  if string.find(name, '/', 1, true) then tries = {name}
  else tries = {slug .. '/' .. name, '/' .. name} end
  for _, a in ipairs(tries) do
    local id = redis.call('GET', key('alias', a .. suffix))
    if id then
      local t = template(id)
      if visible(t, team) then return {'ok', id, t, idle} end
    elseif suffix ~= '' and redis.call('EXISTS', key('alias', a)) == 1 then
      return {'tag'}
    end
  end
  local t = template(name .. suffix)
  if visible(t, team) then return {'ok', name .. suffix, t, idle} end
  if t[1] then return {'forbidden'} end
  t = template(name)
  if suffix ~= '' and visible(t, team) then return {'tag'} end
  return {'missing'}
end

local out = {}
for _, id in ipairs(redis.call('SMEMBERS', key('tpls'))) do
  local t = template(id)
  if t[1] and (ARGV[3] == '' or t[2] == ARGV[3]) then out[#out + 1] = {id, t} end
end
return out
