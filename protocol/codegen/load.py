"""Loads protocol/api/*.yaml and checks it. Every mistake is an error here, not at run time."""

import dataclasses
import pathlib
import re

import yaml

STATUSES = ("supported", "refused", "missing")
MODES = ("local", "async", "sync")
ENTRY_KEYS = {"symbol", "proto", "public", "status", "mode", "op", "args", "request", "reply",
              "client", "server", "blocking", "call_bulk", "reply_bulk", "wants_reply", "needs_context",
              "shared", "checked", "caller", "result", "doc", "why"}
MESSAGE_KEYS = {"message", "op", "mode", "request", "reply", "server", "call_bulk", "reply_bulk",
                "blocking", "needs_context", "doc"}
PUBLIC_KEYS = {"name", "since", "twin", "twin_since"}
ARG_KEYS = {"dir", "create", "destroy"}

# C types of handles -> the id type that names the object on the wire.
HANDLES = {
    "CUcontext": "ContextId", "CUmodule": "ModuleId", "CUlibrary": "LibraryId",
    "CUfunction": "FunctionId", "CUkernel": "FunctionId", "CUstream": "StreamId",
    "CUevent": "EventId", "CUmemoryPool": "MemPoolId",
}
# C types of values -> wire type. Enums are listed, so that a typing mistake is an error.
SCALARS = {
    "int": "int32_t", "unsigned int": "uint32_t", "unsigned short": "uint16_t",
    "unsigned char": "uint8_t", "size_t": "uint64_t", "unsigned long long": "uint64_t",
    "float": "float", "CUdeviceptr": "uint64_t", "CUdevice": "int32_t", "cuuint32_t": "uint32_t",
    "cuuint64_t": "uint64_t", "CUlimit": "int32_t", "CUfunction_attribute": "int32_t",
}
# Types of `request:` and `reply:` fields.
FIELDS = {
    "bool": "bool", "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "i32": "int32_t",
    "u64": "uint64_t", "i64": "int64_t", "f32": "float", "string": "std::string", "bytes": "Bytes",
    "context": "ContextId", "module": "ModuleId", "library": "LibraryId", "function": "FunctionId",
    "stream": "StreamId", "event": "EventId", "mem_allocation": "MemAllocationId",
    "mem_pool": "MemPoolId", "image": "ImageId", "FunctionInfo": "FunctionInfo",
    "link": "LinkId", "array": "ArrayId", "mipmapped_array": "MipmappedArrayId", "BoxPlace": "BoxPlace",
    "BoxShape": "BoxShape", "TextureResource": "TextureResource", "GraphNode": "GraphNode",
    "graph": "GraphId", "graph_exec": "GraphExecId",
    # Plain structs of cuda.h travel as they are: both ends are x86-64 and use one cuda.h.
    "CUmemAllocationProp": "CUmemAllocationProp", "CUmemAccessDesc": "CUmemAccessDesc",
    "CUmemLocation": "CUmemLocation", "CUlaunchAttribute": "CUlaunchAttribute",
    "CUDA_ARRAY3D_DESCRIPTOR": "CUDA_ARRAY3D_DESCRIPTOR", "CUDA_TEXTURE_DESC": "CUDA_TEXTURE_DESC",
    "CUDA_RESOURCE_VIEW_DESC": "CUDA_RESOURCE_VIEW_DESC",
    "CUstreamBatchMemOpParams": "CUstreamBatchMemOpParams",
}


class SpecError(Exception):
    pass


@dataclasses.dataclass
class Field:
    name: str
    type: str


@dataclasses.dataclass
class Arg:
    name: str
    type: str  # as in cuda.h, e.g. "const CUmemLocation *"
    dir: str = "in"
    create: bool = False
    destroy: bool = False

    @property
    def pointee(self):
        return re.sub(r"\bconst\b", "", self.type).replace("*", "", 1).strip()

    @property
    def is_pointer(self):
        return "*" in self.type

    @property
    def handle(self):
        return HANDLES.get(self.pointee if self.is_pointer else self.type)


@dataclasses.dataclass
class Call:
    """One entry point of cuda.h, or one message of ours that has no symbol."""
    name: str           # cuMemAlloc_v2, or SessionImagePart
    group: str          # file it stands in: memory
    symbol: str | None = None
    proto: str = ""
    public: dict = dataclasses.field(default_factory=dict)
    status: str = "supported"
    mode: str = "local"
    op: int | None = None
    args: list = dataclasses.field(default_factory=list)
    request: list = dataclasses.field(default_factory=list)
    reply: list = dataclasses.field(default_factory=list)
    client: str = "generated"
    server: str = "generated"
    blocking: bool = False
    call_bulk: bool = False
    reply_bulk: bool = False
    wants_reply: bool = False
    needs_context: bool = True
    shared: bool = False  # written once, in protocol/driver_abi/local, for client and softgpu
    caller: bool = False  # the client's code is told the return address, to know who asks
    checked: bool = False  # a generated client stub asks Check_<symbol> before it sends
    result: str = "CUDA_ERROR_NOT_SUPPORTED"  # of a call that is not supported
    doc: str = ""
    why: str = ""

    @property
    def remote(self):
        return self.status == "supported" and self.mode != "local"

    @property
    def cpp_name(self):
        """MemAllocV2 for cuMemAlloc_v2: the stem of its messages' and handler's names."""
        if self.symbol is None:
            return self.name
        return re.sub(r"_v(\d+)$", r"V\1", self.symbol[2:])

    @property
    def twin(self):
        return self.public.get("twin")


def parse_args(text, where):
    args = []
    text = text.strip()
    if text in ("", "void"):
        return args
    for part in text.split(","):
        match = re.fullmatch(r"\s*(.*?)\s*(\w+)\s*(\[\])?\s*", part)
        if not match:
            raise SpecError(f"{where}: cannot read the argument '{part}'")
        type_text = re.sub(r"\s+", " ", match.group(1))
        type_text = re.sub(r"\s*\*\s*", "*", type_text).replace("*", " *", 1)
        if match.group(3):
            type_text += " *"
        args.append(Arg(name=match.group(2), type=type_text.strip()))
    return args


def field_type(text, where):
    match = re.fullmatch(r"list<(\w+)>", str(text))
    inner = match.group(1) if match else text
    if inner not in FIELDS:
        raise SpecError(f"{where}: unknown field type '{text}'")
    return f"std::vector<{FIELDS[inner]}>" if match else FIELDS[inner]


def _fields(mapping, where):
    return [Field(name, field_type(kind, f"{where}.{name}")) for name, kind in mapping.items()]


def _check_keys(mapping, allowed, where):
    unknown = set(mapping) - allowed
    if unknown:
        raise SpecError(f"{where}: unknown key {sorted(unknown)}")


def _derive_fields(call, where):
    """Request and reply of a call whose arguments say it all."""
    for arg in call.args:
        at = f"{where}.{arg.name}"
        if arg.is_pointer and arg.dir == "in":
            raise SpecError(f"{at}: a pointer needs 'dir: out', or the call needs 'request:'")
        base = arg.pointee if arg.is_pointer else arg.type
        wire = arg.handle or SCALARS.get(base)
        if wire is None:
            raise SpecError(f"{at}: no wire type for '{arg.type}'; use 'request:' and custom code")
        if arg.create or arg.dir == "in":
            call.request.append(Field(arg.name, wire))
        else:
            call.reply.append(Field(arg.name, wire))


def _load_call(entry, group):
    symbol = entry["symbol"]
    where = symbol
    _check_keys(entry, ENTRY_KEYS, where)
    _check_keys(entry.get("public", {}), PUBLIC_KEYS, f"{where}.public")
    match = re.fullmatch(r"CUresult \((.*)\)", entry["proto"])
    if not match:
        raise SpecError(f"{where}.proto: must be 'CUresult (arguments)'")
    call = Call(name=symbol, group=group, symbol=symbol, proto=match.group(1),
                public=entry["public"], status=entry.get("status", "supported"))
    call.args = parse_args(match.group(1), where)
    if call.status not in STATUSES:
        raise SpecError(f"{where}.status: '{call.status}' is none of {STATUSES}")
    if (call.status == "refused") != bool(entry.get("why")):
        raise SpecError(f"{where}: a refused call, and no other, says why")
    if (call.status == "refused") != ("result" in entry):
        raise SpecError(f"{where}: a refused call, and no other, names its result")
    call.result = entry.get("result", call.result)
    if call.status == "refused" and not re.fullmatch(r"CUDA_ERROR_[A-Z0-9_]+", call.result):
        raise SpecError(f"{where}.result: '{call.result}' is no CUresult of an error")
    call.why = entry.get("why", "")
    call.doc = entry.get("doc", "")
    if call.status != "supported":
        return call
    call.mode = entry.get("mode")
    if call.mode not in MODES:
        raise SpecError(f"{where}.mode: '{call.mode}' is none of {MODES}")
    call.shared = bool(entry.get("shared", False))
    if call.shared and (call.mode != "local" or call.twin):
        raise SpecError(f"{where}: only a local call without a per-thread twin is shared")
    call.caller = bool(entry.get("caller", False))
    if call.caller and (call.mode != "local" or call.twin or call.shared):
        raise SpecError(f"{where}: only a local call of the client's own may ask for its caller")
    if call.mode == "local":
        call.client = "custom"
        return call
    call.op = entry.get("op")
    if not isinstance(call.op, int):
        raise SpecError(f"{where}: a call that travels needs an op")
    for key in ("client", "server"):
        if entry.get(key, "generated") not in ("generated", "custom"):
            raise SpecError(f"{where}.{key}: must be 'custom' or absent")
        setattr(call, key, entry.get(key, "generated"))
    for key in ("blocking", "call_bulk", "reply_bulk", "wants_reply", "checked"):
        setattr(call, key, bool(entry.get(key, False)))
    if call.checked and call.client != "generated":
        raise SpecError(f"{where}: custom client code makes its own checks")
    call.needs_context = bool(entry.get("needs_context", True))
    by_name = {arg.name: arg for arg in call.args}
    for name, options in entry.get("args", {}).items():
        if name not in by_name:
            raise SpecError(f"{where}.args: the prototype has no argument '{name}'")
        _check_keys(options, ARG_KEYS, f"{where}.{name}")
        arg = by_name[name]
        arg.dir = options.get("dir", "in")
        arg.create = options.get("create", False)
        arg.destroy = options.get("destroy", False)
    if "request" in entry:
        if call.client != "custom" or call.server != "custom":
            raise SpecError(f"{where}: 'request:' needs custom code on both sides")
        call.request = _fields(entry["request"], where)
        call.reply = _fields(entry.get("reply", {}), where)
    else:
        _derive_fields(call, where)
    if call.mode == "async" and call.reply and not call.wants_reply:
        raise SpecError(f"{where}: an async call has no reply fields; say 'mode: sync'")
    return call


def _load_message(entry, group):
    where = entry["message"]
    _check_keys(entry, MESSAGE_KEYS, where)
    call = Call(name=entry["message"], group=group, mode=entry["mode"], op=entry["op"],
                client="custom", server="custom", doc=entry.get("doc", ""))
    call.request = _fields(entry.get("request", {}), where)
    call.reply = _fields(entry.get("reply", {}), where)
    for key in ("call_bulk", "reply_bulk", "blocking", "needs_context"):
        setattr(call, key, bool(entry.get(key, False)))
    return call


def load(api_dir):
    """All calls, ordered by file and place in it."""
    calls, ops, symbols = [], {}, set()
    for path in sorted(pathlib.Path(api_dir).glob("*.yaml")):
        for entry in yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            call = _load_message(entry, path.stem) if "message" in entry else _load_call(entry, path.stem)
            if call.name in symbols:
                raise SpecError(f"{call.name}: listed twice")
            symbols.add(call.name)
            if call.op is not None:
                if call.op in ops:
                    raise SpecError(f"{call.name}: op {call.op:#06x} belongs to {ops[call.op]}")
                ops[call.op] = call.name
            calls.append(call)
    return calls
