-- include: common
-- All that a node's full report disagreed about has been dealt with; a recovering cell waits for this. ARGV: prefix, node, now_ms.
if redis.call('EXISTS', key('node', ARGV[2])) == 1 then
  redis.call('HSET', key('node', ARGV[2]), 'full_ms', ARGV[3])
  node_changed(ARGV[2])
end
return 1
