-- include: common
-- Writes of the catalog. With mode "absent" (replay of the journal) what is there already stays. ARGV: prefix, mode (force|absent), op, …
-- team id field value … · key sha id team name mask admin created · unkey team id · rename team id name · template id team public pb created kind node alias … (kind: built, snapshot, fork; node: where a snapshot lies) · forked id now · unfork now · untemplate id now · drop node id at (a snapshot's files are to be deleted, not before `at`) · dropped node id · drops now (those that are due, of nodes that report: node, id …). Answer: 1 done (unkey, rename: the digest; unfork: what was dropped, packed), 0 nothing to do, -1 no such team, -2 sandboxes use the template, -3 another team has the slug, -4 the team has its most keys, -5 its most snapshots.
local absent, op = ARGV[2] == 'absent', ARGV[3]

if op == 'team' then
  local h = key('team', ARGV[4])
  if absent and redis.call('EXISTS', h) == 1 then return 0 end
  -- A slug is the namespace of a team's templates and snapshots: two teams in one would take each other's names.
  for i = 5, #ARGV, 2 do
    if not absent and ARGV[i] == 'slug' and redis.call('HGET', h, 'slug') ~= ARGV[i + 1] then
      for _, t in ipairs(redis.call('SMEMBERS', key('teams'))) do
        if t ~= ARGV[4] and redis.call('HGET', key('team', t), 'slug') == ARGV[i + 1] then return -3 end
      end
    end
  end
  for i = 5, #ARGV, 2 do redis.call('HSET', h, ARGV[i], ARGV[i + 1]) end
  redis.call('SADD', key('teams'), ARGV[4])
  return 1
end

if op == 'key' then
  local h = key('key', ARGV[4])
  if redis.call('EXISTS', h) == 1 then return 0 end
  if redis.call('EXISTS', key('team', ARGV[6])) == 0 then return -1 end
  if not absent and redis.call('HLEN', key('keys', ARGV[6])) >= 1000 then return -4 end
  redis.call('HSET', h, 'id', ARGV[5], 'team', ARGV[6], 'name', ARGV[7], 'mask', ARGV[8], 'admin', ARGV[9], 'created', ARGV[10])
  redis.call('HSET', key('keys', ARGV[6]), ARGV[5], ARGV[4])
  return 1
end

if op == 'unkey' then
  local sha = redis.call('HGET', key('keys', ARGV[4]), ARGV[5])
  if not sha then return 0 end
  redis.call('HDEL', key('keys', ARGV[4]), ARGV[5])
  redis.call('DEL', key('key', sha))
  return sha
end

if op == 'rename' then
  local sha = redis.call('HGET', key('keys', ARGV[4]), ARGV[5])
  if not sha then return 0 end
  redis.call('HSET', key('key', sha), 'name', ARGV[6])
  return sha
end

local function drop_aliases(id)
  local old = redis.call('HGET', key('tpl', id), 'aliases')
  if not old then return end
  for a in string.gmatch(old, '[^\n]+') do
    if redis.call('GET', key('alias', a)) == id then redis.call('DEL', key('alias', a)) end
  end
end

local function used(id)
  for _, t in ipairs(redis.call('SMEMBERS', key('teams'))) do
    for _, view in ipairs({'running', 'paused'}) do
      if redis.call('EXISTS', key('ix', 'tpl', t, id, view)) == 1 then return true end
    end
  end
  return false
end

-- What is to be deleted on nodes' disks: per node the snapshots with the time of the next try, and the nodes that have some. A node that does not
-- come back is forgotten after 30 days.
local function drop_files(node, id, at)
  redis.call('SADD', key('drops'), node)
  redis.call('ZADD', key('drops', node), at, id)
  redis.call('PEXPIRE', key('drops', node), 2592000000)
end

local function drop(id, now)
  local h = key('tpl', id)
  local node = redis.call('HGET', h, 'node') or ''
  -- The master that asks for this tells the node at once; the time is for when it dies in that.
  if node ~= '' then drop_files(node, id, text(now + 30000)) end
  drop_aliases(id)
  redis.call('SREM', key('snaps', redis.call('HGET', h, 'team') or ''), id)
  redis.call('ZREM', key('forks'), id)
  redis.call('DEL', h)
  redis.call('SREM', key('tpls'), id)
end

if op == 'template' then
  local h = key('tpl', ARGV[4])
  local known, kind = redis.call('HEXISTS', h, 'pb') == 1, ARGV[9]
  if absent and known then return 0 end
  if kind ~= 'built' then
    local snaps = key('snaps', ARGV[5])
    if not absent and not known and redis.call('SCARD', snaps) >= snapshots_max(ARGV[5]) then return -5 end
    redis.call('SADD', snaps, ARGV[4])
    -- Its sandboxes are still to be made; a master that dies in that leaves it to the sweep.
    if kind == 'fork' then redis.call('ZADD', key('forks'), num(ARGV[8]) + 600000, ARGV[4]) end
  end
  drop_aliases(ARGV[4])
  local names = {}
  for i = 11, #ARGV do
    redis.call('SET', key('alias', ARGV[i]), ARGV[4])
    names[#names + 1] = ARGV[i]
  end
  redis.call('HSET', h, 'team', ARGV[5], 'public', ARGV[6], 'pb', ARGV[7], 'created', ARGV[8], 'aliases', table.concat(names, '\n'))
  if kind ~= 'built' then
    redis.call('HSET', h, 'node', ARGV[10])
    redis.call('ZREM', key('drops', ARGV[10]), ARGV[4])
  end
  redis.call('SADD', key('tpls'), ARGV[4])
  return 1
end

if op == 'untemplate' then
  if redis.call('HEXISTS', key('tpl', ARGV[4]), 'pb') == 0 then return 0 end
  if used(ARGV[4]) then return -2 end
  drop(ARGV[4], num(ARGV[5]))
  return 1
end

if op == 'forked' then return redis.call('ZADD', key('forks'), 'XX', ARGV[5], ARGV[4]) end

if op == 'unfork' then
  local now, out = num(ARGV[4]), {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('forks'), '-inf', text(now), 'LIMIT', 0, 64)) do
    if used(id) then
      redis.call('ZADD', key('forks'), text(now + 5000), id)
    else
      out[#out + 1] = redis.call('HGET', key('tpl', id), 'pb') or nil
      drop(id, now)
    end
  end
  return out
end

if op == 'drop' then
  drop_files(ARGV[4], ARGV[5], ARGV[6])
  return 1
end

if op == 'dropped' then return redis.call('ZREM', key('drops', ARGV[4]), ARGV[5]) end

if op == 'drops' then
  local now, out = num(ARGV[4]), {}
  for _, node in ipairs(redis.call('SMEMBERS', key('drops'))) do
    local due = key('drops', node)
    if redis.call('EXISTS', due) == 0 then
      redis.call('SREM', key('drops'), node)
    elseif redis.call('HGET', key('node', node), 'status') == 'ready' then
      for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', text(now), 'LIMIT', 0, 16)) do
        if redis.call('HEXISTS', key('tpl', id), 'pb') == 1 then
          redis.call('ZREM', due, id)
        else
          redis.call('ZADD', due, text(now + 60000), id)
          out[#out + 1] = node
          out[#out + 1] = id
        end
      end
    end
    if #out >= 128 then break end
  end
  return out
end
return redis.error_reply('unknown catalog operation ' .. op)
