-- include: common
-- The operator's word about a node. ARGV: prefix, node, cordoned (0|1), draining (0|1). Answer: 1, or 0 when the node is unknown.
local h = key('node', ARGV[2])
if redis.call('EXISTS', h) == 0 then return 0 end
redis.call('HSET', h, 'cordoned', ARGV[3], 'draining', ARGV[4])
node_changed(ARGV[2])
return 1
