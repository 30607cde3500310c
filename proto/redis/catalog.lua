-- include: common
-- Writes of the catalog. With mode "absent" (replay of the journal) what is there already stays. ARGV: prefix, mode (force|absent), op, …
-- team id field value … · key sha id team name mask admin created · unkey team id · rename team id name · template id team public pb created alias … · untemplate id. Answer: 1 done (unkey, rename: the digest), 0 nothing to do, -1 no such team, -2 sandboxes use the template, -3 another team has the slug, -4 the team has its most keys.
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

local function drop_aliases(h)
  local old = redis.call('HGET', h, 'aliases')
  if not old then return end
  for a in string.gmatch(old, '[^\n]+') do
    if redis.call('GET', key('alias', a)) == ARGV[4] then redis.call('DEL', key('alias', a)) end
  end
end

if op == 'template' then
  local h = key('tpl', ARGV[4])
  if absent and redis.call('HEXISTS', h, 'pb') == 1 then return 0 end
  drop_aliases(h)
  local names = {}
  for i = 9, #ARGV do
    redis.call('SET', key('alias', ARGV[i]), ARGV[4])
    names[#names + 1] = ARGV[i]
  end
  redis.call('HSET', h, 'team', ARGV[5], 'public', ARGV[6], 'pb', ARGV[7], 'created', ARGV[8], 'aliases', table.concat(names, '\n'))
  redis.call('SADD', key('tpls'), ARGV[4])
  return 1
end

if op == 'untemplate' then
  local h = key('tpl', ARGV[4])
  if redis.call('HEXISTS', h, 'pb') == 0 then return 0 end
  for _, t in ipairs(redis.call('SMEMBERS', key('teams'))) do
    for _, view in ipairs({'running', 'paused'}) do
      if redis.call('EXISTS', key('ix', 'tpl', t, ARGV[4], view)) == 1 then return -2 end
    end
  end
  drop_aliases(h)
  redis.call('DEL', h)
  redis.call('SREM', key('tpls'), ARGV[4])
  return 1
end
return redis.error_reply('unknown catalog operation ' .. op)
