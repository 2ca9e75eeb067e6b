"""Deterministic HTTP/1.1 range server for benchmarking remote array readers.

    python rangeserver.py --root DIR --port 8123 [--latency-ms 50] ...

Only the standard library (uvloop is used when present).  Behaviour is set by
  * command line / control endpoint   GET /_ctl/set?latency_ms=50&bw_conn=50e6&bw_total=125e6
  * or per URL                        GET /_p/k=v,k=v/file.nc        (overrides the globals)

Knobs (all deterministic: the "every Nth" counters count data requests since the last reset)
  latency_ms     delay before the first response byte of each request (RTT + server think time)
  conn_rtts      extra latencies charged to the first request of a connection (TCP=1, TLS1.3=2)
  bw_conn        bytes/s per connection        (0 = unlimited)
  bw_total       bytes/s over all connections  (0 = unlimited)
  max_ranges     ranges answered in a multi-range request before falling back to 200 (0 = multi-range off -> 200)
  e503/e429=N    every Nth data request is refused (Retry-After: 0)
  busy=N         503 (Retry-After: 0) when more than N requests are in flight
  trunc=N        every Nth body is cut in half and the connection closed
  reset=N        every Nth request: connection dropped with no answer
  norange=1      Range ignored -> 200 + whole body
  nolen=1        no Content-Length (chunked);  nolen=2 -> HTTP/1.0 style close-delimited
  noaccept=1     no Accept-Ranges header
  nocr=1         206 without Content-Range;  badcr=1 -> 206 starting 1 byte too late (header is honest)
  nohead=403|405 HEAD refused;   headnolen=1  HEAD answers without Content-Length
  noetag=1       no validators;  weak=1 -> W/ ETag
  ahead=S        Date is S seconds ahead of the clock
  etagchange=N   after N data requests the ETag (and Last-Modified) changes
  gzip=1         Content-Encoding: gzip on 200 answers when accepted;  gzip=2 also on 206 (a broken proxy)
  suffix=0       suffix ranges (bytes=-N) not understood -> 200 (as some stores do);  suffix=501
  redirect=1     302 to the same file with ?sig=… (signed-URL style), one extra round trip
Preconditions If-Match (412), If-None-Match (304) and If-Range (200) are honoured.

Control: /_ctl/set?k=v  /_ctl/reset  /_ctl/stats  /_ctl/log  /_ctl/config
stats: requests, gets, heads, bytes, conns, max_inflight, depth (length of the longest chain
of requests in which each starts after the previous finished = dependent round trips seen).
"""

import argparse, asyncio, gzip, hashlib, json, os, sys, time
from email.utils import formatdate
from urllib.parse import parse_qsl, unquote, urlsplit

DEF = dict(
    latency_ms=0.0,
    conn_rtts=1.0,
    bw_conn=0.0,
    bw_total=0.0,
    max_ranges=100,
    e503=0,
    e429=0,
    busy=0,
    trunc=0,
    reset=0,
    norange=0,
    nolen=0,
    noaccept=0,
    nocr=0,
    badcr=0,
    nohead=0,
    headnolen=0,
    noetag=0,
    ahead=3600,
    weak=0,
    etagchange=0,
    gzip=0,
    suffix=1,
    redirect=0,
)
PIECE = 64 * 1024
ETAGS = {}


def num(v):
    f = float(v)
    return int(f) if f == int(f) else f


class Server:
    def __init__(self, root, **cfg):
        self.root = os.path.realpath(root)
        self.cfg = dict(DEF, **cfg)
        self.conn_seq = 0
        self.reset()

    def reset(self):
        self.log, self.n_data, self.inflight, self.max_inflight = [], 0, 0, 0
        self.conns, self.total_free = set(), 0.0

    # ---------- statistics
    def stats(self):
        recs = [r for r in self.log]
        depth, last = 0, -1.0
        for r in sorted(recs, key=lambda r: r["t1"]):  # greedy interval scheduling
            if r["t0"] >= last:
                depth, last = depth + 1, r["t1"]
        return dict(
            requests=len(recs),
            gets=sum(r["m"] == "GET" for r in recs),
            heads=sum(r["m"] == "HEAD" for r in recs),
            bytes=sum(r["sent"] for r in recs),
            conns=len(self.conns),
            max_inflight=self.max_inflight,
            depth=depth,
            span=(max(r["t1"] for r in recs) - min(r["t0"] for r in recs)) if recs else 0,
        )

    # ---------- one connection
    async def handle(self, rd, wr):
        self.conn_seq += 1
        cid, first = self.conn_seq, True
        try:
            sock = wr.get_extra_info("socket")
            import socket

            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                try:
                    head = await rd.readuntil(b"\r\n\r\n")
                except (asyncio.IncompleteReadError, ConnectionError):
                    return
                lines = head.decode("latin-1").split("\r\n")
                method, target, proto = lines[0].split(" ", 2)
                hdr = {}
                for l in lines[1:]:
                    if l:
                        k, _, v = l.partition(":")
                        hdr[k.strip().lower()] = v.strip()
                if n := int(hdr.get("content-length", 0)):
                    await rd.readexactly(n)
                keep = hdr.get("connection", "").lower() != "close" and proto != "HTTP/1.0"
                path = urlsplit(target)
                if path.path.startswith("/_ctl/"):
                    body = json.dumps(self.control(path)).encode()
                    wr.write(
                        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                        % len(body)
                        + body
                    )
                    await wr.drain()
                    continue
                rec = dict(
                    m=method,
                    path=target,
                    range=hdr.get("range"),
                    conn=cid,
                    t0=time.perf_counter(),
                    sent=0,
                    status=0,
                )
                log = self.log  # a request that is under way at a reset counts before it
                self.conns.add(cid)
                self.inflight += 1
                self.max_inflight = max(self.max_inflight, self.inflight)
                try:
                    keep = await self.respond(wr, method, path, hdr, rec, first, keep)
                finally:
                    self.inflight -= log is self.log
                    rec["t1"] = time.perf_counter()
                    log.append(rec)
                first = False
                if not keep:
                    return
        except (ConnectionError, BrokenPipeError):
            pass
        finally:
            try:
                wr.close()
            except Exception:
                pass

    def control(self, path):
        op, q = path.path[6:], dict(parse_qsl(path.query))
        if op == "set":
            for k, v in q.items():
                if k not in DEF:
                    return {"error": f"unknown {k}"}
                self.cfg[k] = num(v)
            return self.cfg
        if op == "default":
            self.cfg = dict(DEF)
            return self.cfg
        if op == "reset":
            self.reset()
            return {}
        if op == "log":
            return self.log
        if op == "config":
            return self.cfg
        return self.stats()

    async def pace(self, n, c, st):
        """Sleep so that n more bytes respect both caps (virtual-clock token bucket)."""
        now, until = time.perf_counter(), 0.0
        if c["bw_conn"]:
            st["free"] = max(st["free"], now) + n / c["bw_conn"]
            until = st["free"]
        if c["bw_total"]:
            self.total_free = max(self.total_free, now) + n / c["bw_total"]
            until = max(until, self.total_free)
        if until - now > 0.0015:
            await asyncio.sleep(until - now)

    async def respond(self, wr, method, path, hdr, rec, first, keep):
        p, c = unquote(path.path), self.cfg
        if p.startswith("/_p/"):
            _, _, spec, p = p.split("/", 3)
            p = "/" + p
            c = dict(c, **{k: num(v) for k, v in (kv.split("=") for kv in spec.split(",") if kv)})
        lat = c["latency_ms"] / 1e3 * (1 + (c["conn_rtts"] if first else 0))
        if lat:
            await asyncio.sleep(lat)
        self.n_data += 1
        nth = lambda k: c[k] and self.n_data % c[k] == 0
        if nth("reset"):
            rec["status"] = -1
            wr.transport.abort()
            return False

        async def simple(code, reason, extra="", body=b""):
            rec["status"] = code
            wr.write(
                f"HTTP/1.1 {code} {reason}\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode()
                + (body if method != "HEAD" else b"")
            )
            await wr.drain()
            return keep

        if c["busy"] and self.inflight > c["busy"]:
            return await simple(503, "Slow Down", "Retry-After: 0\r\n", b"too many")
        if nth("e503"):
            return await simple(503, "Service Unavailable", "Retry-After: 0\r\n", b"busy")
        if nth("e429"):
            return await simple(429, "Too Many Requests", "Retry-After: 0\r\n", b"slow down")
        fn = os.path.realpath(os.path.join(self.root, p.lstrip("/")))
        if method not in ("GET", "HEAD"):
            return await simple(405, "Method Not Allowed")
        if not fn.startswith(self.root) or not os.path.isfile(fn):
            # as S3 has it, without which its clients would ask again
            return await simple(404, "Not Found", "", b"<Error><Code>NoSuchKey</Code></Error>")
        if method == "HEAD" and c["nohead"]:
            return await simple(c["nohead"], "Refused")
        if c["redirect"] and "sig=" not in path.query:
            return await simple(302, "Found", f"Location: {path.path}?sig=abc\r\n")
        st = os.stat(fn)
        size, ver = st.st_size, 0
        if c["etagchange"] and self.n_data > c["etagchange"]:
            ver = 1
        etag = '"' + hashlib.md5(f"{fn}{size}{st.st_mtime_ns}{ver}".encode()).hexdigest() + '"'
        if c["weak"]:
            etag = "W/" + etag
        if (im := hdr.get("if-match")) and im != "*" and etag not in im:
            return await simple(412, "Precondition Failed")
        if (inm := hdr.get("if-none-match")) and etag in inm:
            return await simple(304, "Not Modified", f"ETag: {etag}\r\n")
        h = {"Content-Type": "application/octet-stream"}
        if not c["noetag"]:
            h["ETag"] = etag
            h["Last-Modified"] = formatdate(st.st_mtime + ver, usegmt=True)
            # its clock is ahead, so that files are never too new to be remembered
            h["Date"] = formatdate(time.time() + c["ahead"], usegmt=True)
        if not c["noaccept"]:
            h["Accept-Ranges"] = "bytes"
        ranges, rng = None, hdr.get("range", "")
        if (
            rng.startswith("bytes=")
            and not c["norange"]
            and not ((ir := hdr.get("if-range")) and ir != etag)
        ):
            ranges = []
            for s in rng[6:].split(","):
                a, _, b = s.strip().partition("-")
                if not a:
                    if c["suffix"] == 501:
                        return await simple(501, "Not Implemented")
                    if not c["suffix"]:
                        ranges = None
                        break
                    a, b = max(0, size - int(b)), size - 1
                else:
                    a, b = int(a), min(int(b) if b else size - 1, size - 1)
                if a < size and a <= b:
                    ranges.append((a, b + 1))
            if ranges == []:
                return await simple(
                    416, "Range Not Satisfiable", f"Content-Range: bytes */{size}\r\n"
                )
            if ranges and len(ranges) > max(1, c["max_ranges"]):
                ranges = None
        f = open(fn, "rb", buffering=0)
        try:
            pieces, status, reason = [], 200, "OK"  # (prefix bytes, start, stop)
            if ranges is None:
                pieces = [(b"", 0, size)]
            elif len(ranges) == 1:
                a, b = ranges[0]
                status, reason = 206, "Partial Content"
                if c["badcr"] and b - a > 1:
                    a += 1
                if not c["nocr"]:
                    h["Content-Range"] = f"bytes {a}-{b - 1}/{size}"
                pieces = [(b"", a, b)]
            else:
                status, reason, bd = 206, "Partial Content", "RANGESERVERBOUNDARY"
                h["Content-Type"] = f"multipart/byteranges; boundary={bd}"
                for i, (a, b) in enumerate(ranges):
                    pieces.append(
                        (
                            f"{chr(13) + chr(10) if i else ''}--{bd}\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes {a}-{b - 1}/{size}\r\n\r\n".encode(),
                            a,
                            b,
                        )
                    )
                pieces.append((f"\r\n--{bd}--\r\n".encode(), 0, 0))
            zipped = None
            if "gzip" in hdr.get("accept-encoding", "") and (
                c["gzip"] == 2 or (c["gzip"] and status == 200)
            ):
                zipped = gzip.compress(
                    b"".join(pre + os.pread(f.fileno(), b - a, a) for pre, a, b in pieces), 1
                )
                h["Content-Encoding"] = "gzip"
            total = (
                len(zipped) if zipped is not None else sum(len(pre) + b - a for pre, a, b in pieces)
            )
            chunked = c["nolen"] == 1 and method == "GET"
            if chunked:
                h["Transfer-Encoding"] = "chunked"
            elif c["nolen"] == 2:
                h["Connection"], keep = "close", False
            elif not (method == "HEAD" and (c["headnolen"] or c["nolen"])):
                h["Content-Length"] = str(total)
            rec["status"] = status
            wr.write(
                f"HTTP/1.1 {status} {reason}\r\n".encode()
                + "".join(f"{k}: {v}\r\n" for k, v in h.items()).encode()
                + b"\r\n"
            )
            if method == "HEAD":
                await wr.drain()
                return keep
            stop_at = total // 2 if nth("trunc") else total
            bw, conn_state = c["bw_conn"] or c["bw_total"], {"free": 0.0}

            async def send(buf):
                buf = buf[: max(0, stop_at - rec["sent"])]
                if not buf:
                    return
                if bw:
                    await self.pace(len(buf), c, conn_state)
                wr.write(b"%x\r\n" % len(buf) + buf + b"\r\n" if chunked else buf)
                rec["sent"] += len(buf)
                await wr.drain()

            step = PIECE if bw else 1 << 20
            if zipped is not None:
                for i in range(0, len(zipped), step):
                    await send(zipped[i : i + step])
            else:
                for pre, a, b in pieces:
                    if pre:
                        await send(pre)
                    while a < b:
                        if rec["sent"] >= stop_at:
                            break
                        buf = os.pread(f.fileno(), min(step, b - a), a)
                        if not buf:
                            break
                        a += len(buf)
                        await send(buf)
            if stop_at < total:
                wr.close()
                return False
            if chunked:
                wr.write(b"0\r\n\r\n")
                await wr.drain()
            return keep
        finally:
            f.close()


async def main(a):
    s = Server(a.root, **{k: num(getattr(a, k)) for k in DEF if getattr(a, k) is not None})
    srv = await asyncio.start_server(s.handle, a.host, a.port, limit=1 << 16, backlog=1024)
    print(f"serving {s.root} on {a.host}:{a.port}", flush=True)
    async with srv:
        await srv.serve_forever()


if __name__ == "__main__":
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--root", default=".")
    ap.add_argument("--host", default="127.0.0.1")
    ap.add_argument("--port", type=int, default=8123)
    for k in DEF:
        ap.add_argument("--" + k.replace("_", "-"), dest=k)
    a = ap.parse_args()
    try:
        import uvloop

        uvloop.run(main(a))
    except ImportError:
        asyncio.run(main(a))
