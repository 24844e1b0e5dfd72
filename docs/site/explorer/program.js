// The program in a page: a WASI host for the commands of src/explorer, with stdin and a few files in memory.
//
//   const program = await loadProgram();
//   program.run(["explain", "--json", "config.json"], { files: { "config.json": text }, stdin: "" })
//     -> { status, out, err }
//
// Every run is a new instance: nothing of one question reaches the next. Works in pages and in Node.
"use strict";

(() => {
  const OK = 0, BADF = 8, NOENT = 44, NOSYS = 52;
  const FOLDER = 3, REGULAR = 4;  // WASI's file types
  const ROOT_FD = 3, FIRST_FREE_FD = 4;

  class Exit extends Error {
    constructor(status) { super(`exit ${status}`); this.status = status; }
  }

  // The calls that the program makes; anything else answers "not there".
  function makeHost(words, files, stdin) {
    const encoder = new TextEncoder(), decoder = new TextDecoder();
    const args = ["fp4moe", ...words].map((word) => encoder.encode(word + "\0"));
    const streams = { 1: [], 2: [] };
    const open = new Map([[0, { bytes: encoder.encode(stdin), at: 0 }]]);
    let nextFd = FIRST_FREE_FD, memory = null;
    const view = () => new DataView(memory.buffer);
    const bytesAt = (at, count) => new Uint8Array(memory.buffer, at, count);
    const textAt = (at, count) => decoder.decode(bytesAt(at, count));
    const fileAt = (at, count) => {
      const name = textAt(at, count).replace(/^\.\//, "");
      return Object.hasOwn(files, name) ? encoder.encode(files[name]) : null;
    };
    const vectors = (at, count) => Array.from({ length: count }, (_, i) =>
      [view().getUint32(at + 8 * i, true), view().getUint32(at + 8 * i + 4, true)]);
    const writeStat = (at, type, size) => {
      bytesAt(at, 64).fill(0);
      view().setUint8(at + 16, type);
      view().setBigUint64(at + 24, 1n, true);
      view().setBigUint64(at + 32, BigInt(size), true);
    };
    const calls = {
      args_sizes_get(count, bytes) {
        view().setUint32(count, args.length, true);
        view().setUint32(bytes, args.reduce((sum, word) => sum + word.length, 0), true);
        return OK;
      },
      args_get(pointers, buffer) {
        for (const [i, word] of args.entries()) {
          view().setUint32(pointers + 4 * i, buffer, true);
          bytesAt(buffer, word.length).set(word);
          buffer += word.length;
        }
        return OK;
      },
      environ_sizes_get(count, bytes) {
        view().setUint32(count, 0, true);
        view().setUint32(bytes, 0, true);
        return OK;
      },
      environ_get: () => OK,
      clock_time_get(_clock, _precision, at) { view().setBigUint64(at, 0n, true); return OK; },
      random_get(at, count) { bytesAt(at, count).fill(0); return OK; },
      proc_exit(status) { throw new Exit(status); },
      fd_prestat_get(fd, at) {
        if (fd !== ROOT_FD) return BADF;
        view().setUint32(at, 0, true);
        view().setUint32(at + 4, 1, true);
        return OK;
      },
      fd_prestat_dir_name(_fd, at) { bytesAt(at, 1)[0] = 46; return OK; },  // "."
      fd_fdstat_get(fd, at) {
        if (fd > 2 && fd !== ROOT_FD && !open.has(fd)) return BADF;
        bytesAt(at, 24).fill(0);
        view().setUint8(at, fd === ROOT_FD ? FOLDER : REGULAR);
        view().setBigUint64(at + 8, 0xffffffffffffffffn, true);
        view().setBigUint64(at + 16, 0xffffffffffffffffn, true);
        return OK;
      },
      fd_fdstat_set_flags: () => OK,
      fd_filestat_get(fd, at) {
        if (!open.has(fd)) return BADF;
        writeStat(at, REGULAR, open.get(fd).bytes.length);
        return OK;
      },
      path_filestat_get(_fd, _flags, path, length, at) {
        if (textAt(path, length) === ".") { writeStat(at, FOLDER, 0); return OK; }
        const file = fileAt(path, length);
        if (file === null) return NOENT;
        writeStat(at, REGULAR, file.length);
        return OK;
      },
      path_open(_fd, _flags, path, length, _open, _rights, _inheriting, _fdflags, at) {
        const file = fileAt(path, length);
        if (file === null) return NOENT;
        open.set(nextFd, { bytes: file, at: 0 });
        view().setUint32(at, nextFd++, true);
        return OK;
      },
      fd_read(fd, list, count, at) {
        if (!open.has(fd)) return BADF;
        const file = open.get(fd);
        let total = 0;
        for (const [buffer, length] of vectors(list, count)) {
          const part = file.bytes.subarray(file.at, file.at + length);
          bytesAt(buffer, part.length).set(part);
          file.at += part.length;
          total += part.length;
        }
        view().setUint32(at, total, true);
        return OK;
      },
      fd_pread(fd, list, count, offset, at) {
        if (!open.has(fd)) return BADF;
        const file = open.get(fd), before = file.at;
        file.at = Number(offset);
        const status = calls.fd_read(fd, list, count, at);
        file.at = before;
        return status;
      },
      fd_seek(fd, offset, whence, at) {
        if (!open.has(fd)) return BADF;
        const file = open.get(fd);
        file.at = Number(offset) + [0, file.at, file.bytes.length][whence];
        view().setBigUint64(at, BigInt(file.at), true);
        return OK;
      },
      fd_write(fd, list, count, at) {
        if (!streams[fd]) return BADF;
        let total = 0;
        for (const [buffer, length] of vectors(list, count)) {
          streams[fd].push(bytesAt(buffer, length).slice());
          total += length;
        }
        view().setUint32(at, total, true);
        return OK;
      },
      fd_close(fd) { open.delete(fd); return OK; },
    };
    const text = (fd) => {
      const whole = new Uint8Array(streams[fd].reduce((sum, part) => sum + part.length, 0));
      let at = 0;
      for (const part of streams[fd]) { whole.set(part, at); at += part.length; }
      return decoder.decode(whole);
    };
    return {
      calls: new Proxy(calls, { get: (known, name) => known[name] ?? (() => NOSYS), has: () => true }),
      attach(instance) { memory = instance.exports.memory; },
      text,
    };
  }

  class Program {
    constructor(module) { this.module = module; }

    run(words, { files = {}, stdin = "" } = {}) {
      const host = makeHost(words, files, stdin);
      const instance = new WebAssembly.Instance(this.module, { wasi_snapshot_preview1: host.calls });
      host.attach(instance);
      let status = 0;
      try {
        instance.exports._start();
      } catch (error) {
        if (!(error instanceof Exit)) throw error;
        status = error.status;
      }
      return { status, out: host.text(1), err: host.text(2) };
    }
  }

  function bytesOf(base64) {
    const text = atob(base64);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
    return bytes;
  }

  // The module is embedded, gzip in base64: pages opened as files may not read others. Errors: no WebAssembly; no module.
  globalThis.loadProgram = async () => {
    if (typeof WebAssembly !== "object") throw new Error("This browser has no WebAssembly.");
    if (typeof DecompressionStream !== "function") throw new Error("This browser cannot unpack gzip (DecompressionStream).");
    if (typeof FP4MOE_WASM !== "string") throw new Error("The page is incomplete: fp4moe.wasm.js is missing.");
    const packed = new Blob([bytesOf(FP4MOE_WASM)]).stream();
    const bytes = await new Response(packed.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
    return new Program(await WebAssembly.compile(bytes));
  };
})();
