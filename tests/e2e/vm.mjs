// What only this machine's files say of a sandbox.
import { readFileSync } from 'node:fs'
import { ok } from './check.mjs'

// The VM process of a sandbox as the node's record names it (proto/node.proto, Record: 9 vm_pid, 10 vm_start_time), with the start time that
// the kernel shows for that pid now; throws when it is another process.
export function vmProcess(id) {
  const record = readFileSync(`${process.env.CUBE_STATE_DIR}/sandboxes/${id}/record`).subarray(8) // behind the checksum
  const fields = {}
  let at = 0
  const varint = () => {
    let value = 0n
    for (let shift = 0n; ; shift += 7n) {
      const byte = record[at++]
      value |= BigInt(byte & 0x7f) << shift
      if (!(byte & 0x80)) return value
    }
  }
  while (at < record.length) {
    const tag = Number(varint())
    if ((tag & 7) === 0) fields[tag >> 3] = varint()
    else if ((tag & 7) === 2) {
      const length = Number(varint()) // apart: += would read `at` before it
      at += length
    } else throw new Error(`record of ${id}: wire type ${tag & 7}`)
  }
  const stat = readFileSync(`/proc/${fields[9]}/stat`, 'utf8')
  const start = stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]
  ok(stat.includes('(cube-vmm)') && start === String(fields[10]), `pid ${fields[9]} is another process: ${stat.slice(0, 60)}`)
  return `${fields[9]}@${start}`
}
