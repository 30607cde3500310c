"""TCP on 127.0.0.1 to one port of a guest through its in.sock (2 bytes of port, 1 status byte, raw), half-close passed on:
   bridge.py IN_SOCK PORT  prints the TCP port."""
import asyncio
import sys


async def pump(reader, writer):
    try:
        while data := await reader.read(262144):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()


async def main(path, port):
    async def on_client(reader, writer):
        try:
            up_reader, up_writer = await asyncio.open_unix_connection(path)
            up_writer.write(port.to_bytes(2, "big"))
            status = await up_reader.readexactly(1)
        except (OSError, asyncio.IncompleteReadError):
            status = b"?"
        if status != b"\0":
            writer.close()
            return
        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))
        writer.close()
        up_writer.close()

    server = await asyncio.start_server(on_client, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
