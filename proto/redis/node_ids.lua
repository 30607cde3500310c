-- include: common
-- Sandboxes recorded on a node that are in one of the states given. ARGV: prefix, node, limit, state …
local want, out = {}, {}
for i = 4, #ARGV do want[ARGV[i]] = true end
for _, id in ipairs(redis.call('SMEMBERS', key('ix', 'node', ARGV[2]))) do
  if #out >= num(ARGV[3]) then break end
  if want[redis.call('HGET', key('sb', id), 'state') or ''] then out[#out + 1] = id end
end
return out
