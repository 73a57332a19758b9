// liblinattn in a page: the C interface of linattn.h with arrays in place of pointers.

const ABI = 1; // LINATTN_ABI of linattn.h

// Functions of the system interface, which a decoder does not use.
const system = new Proxy({}, { get: () => () => 8 }); // no such file

// The fields of `linattn_info`.
const INFO = ["levels", "channels", "parameters", "layers", "width", "maxLength", "window", "stateBytes", "modelBytes"];

export class Decoder {
  // A model from the bytes of its file; throws the library's sentence.
  static async open(module, bytes) {
    const { exports } = await WebAssembly.instantiate(module, { wasi_snapshot_preview1: system, env: system });
    exports._initialize?.();
    const abi = exports.linattn_abi?.();
    if (abi !== ABI) throw new Error(`linattn.wasm: expected the interface ${ABI}, got ${abi}; compile it anew.`);
    return new Decoder(exports, new Uint8Array(bytes));
  }

  constructor(exports, bytes) {
    this.c = exports;
    this.model = this.with([bytes], (place) => this.call(0, "linattn_open_bytes", place, BigInt(bytes.length), 1));
    const values = this.with([new BigInt64Array(INFO.length)], (place) => {
      this.call(-1, "linattn_describe", this.model, place);
      return this.copy(BigInt64Array, place, INFO.length);
    });
    this.info = Object.fromEntries(INFO.map((name, i) => [name, Number(values[i])]));
  }

  // The result of work(places) with arrays in the library's memory.
  with(arrays, work) {
    const places = [];
    try {
      for (const array of arrays) {
        const bytes = array.byteLength, place = bytes < 2 ** 32 && this.c.malloc(bytes || 1) >>> 0; // not negative
        if (!place) throw new Error(`memory: expected ${bytes} bytes, got none; use a smaller model or fewer rows.`);
        places.push(place);
        new array.constructor(this.c.memory.buffer, place, array.length).set(array);
      }
      return work(...places);
    } finally {
      places.forEach((place) => this.c.free(place));
    }
  }

  // Numbers of the library's memory.
  copy(Type, place, count) {
    return new Type(this.c.memory.buffer, place >>> 0, count).slice();
  }

  // What a function returns; throws the library's sentence if that is `failed`, or if the function throws, which leaves
  // its stack behind.
  call(failed, name, ...values) {
    const top = this.c.__stack_pointer, before = top?.value;
    let result = failed, reason = name;
    try {
      result = this.c[name](...values);
    } catch (trap) {
      reason = String(trap);
      if (top) top.value = before;
    }
    if (result !== failed) return result;
    const sentence = new Uint8Array(this.c.memory.buffer, this.c.linattn_error() >>> 0);
    throw new Error(new TextDecoder().decode(sentence.slice(0, sentence.indexOf(0))) || reason);
  }

  newState(rows) {
    return this.call(0, "linattn_state_new", this.model, BigInt(rows));
  }

  free(state) {
    this.c.linattn_state_free(state);
  }

  // The numbers of a token of each row.
  values(state) {
    return Number(this.c.linattn_state_rows(state)) * (this.info.channels || 1);
  }

  // Reads tokens of all rows, one row behind the other.
  read(state, tokens) {
    const count = tokens.length / this.values(state);
    if (!Number.isInteger(count)) throw new Error(`tokens: expected as many of each row, got ${tokens.length} numbers.`);
    this.with([Int32Array.from(tokens)], (place) => this.call(-1, "linattn_read", state, place, BigInt(count)));
  }

  // Draws the next token of each row.
  sample(state, { temperature = 1, topP = 0, minP = 0, topK = 0, seed = 0 } = {}) {
    const count = this.values(state);
    return this.with([new Float64Array(7), new Int32Array(count)], (place, tokens) => {
      new Float64Array(this.c.memory.buffer, place, 4).set([temperature, topP, minP, 1]);
      new BigInt64Array(this.c.memory.buffer, place + 32, 3).set([BigInt(topK), BigInt(seed), 0n]);
      this.call(-1, "linattn_sample", state, place, tokens);
      return Array.from(this.copy(Int32Array, tokens, count));
    });
  }

  encode(text) {
    const bytes = new TextEncoder().encode(text), room = BigInt(bytes.length);
    return this.with([bytes, new Int32Array(bytes.length)], (from, to) => {
      const count = this.call(-1n, "linattn_encode", this.model, from, room, to, room);
      return Array.from(this.copy(Int32Array, to, Number(count)));
    });
  }

  // The bytes of a token's text.
  piece(token) {
    return this.with([new BigInt64Array(1)], (size) => {
      const place = this.call(0, "linattn_decode", this.model, token, size);
      return this.copy(Uint8Array, place, Number(this.copy(BigInt64Array, size, 1)[0]));
    });
  }

  // All numbers of a state, by its parts: those of the file that `linattn_state_save` writes.
  numbers(state) {
    const save = (place, room) => this.call(-1n, "linattn_state_save", state, place, room);
    const size = save(0, 0n);
    const file = this.with([new Uint8Array(Number(size))], (place) => {
      save(place, size);
      return this.copy(Uint8Array, place, Number(size)).buffer;
    });
    const start = 8 + Number(new DataView(file).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(file.slice(8, start)));
    return Object.keys(header).filter((name) => name.startsWith("layers."))
      .map((name) => new Float32Array(file.slice(...header[name].data_offsets.map((x) => start + x))));
  }
}
