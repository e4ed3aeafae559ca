import sys; sys.path.insert(0,"/tmp/p2dev")
from dataclasses import dataclass
import shim as S, numpy as np, json, struct, time
@dataclass
class LayerView:
    layer:int; role:str; present:bool; ratio:int; k_owner:int; source:int
    k_codes=None;k_scales=None;q_codes=None;q_scales=None;weights=None;ks=None;ke=None;selected=None
class Trace: pass
TraceView=Trace
class ResultView: pass
DT={"U8":np.uint8,"I32":np.int32,"I64":np.int64,"F32":np.float32}
def read(path):
    m=np.memmap(path,np.uint8,"r"); n=int(m[:8].view(np.uint64)[0]); h=json.loads(bytes(m[8:8+n])); meta=h.pop("__metadata__",{})
    out={}
    for k,v in h.items():
        a,b=v["data_offsets"]; out[k]=np.frombuffer(m[8+n+a:8+n+b].tobytes(),DT[v["dtype"]]).reshape(v["shape"])
    return out,meta
def open_trace(path):
    t,meta=read(path); tr=Trace(); m=json.loads(meta["model"]); tr.model=m; tr.about=meta.get("about"); tr.path=path
    tr.position=t["position"].astype(np.int64); R=tr.rows=len(tr.position)
    tr.request=t.get("request",np.zeros(R,np.int32)); tr.blocks=t.get("blocks")
    tr.context=t.get("context"); tr.layers=[]
    src=m.get("candidate_source_layer_id")
    for L in m["index_source_layer_ids"]:
        ow=max(x for x in m["kv_source_layer_ids"] if x<=L); ratio=m["compress_ratios"][L]
        role="source" if L==src else "consumer" if src is not None and L>src else "full"
        v=LayerView(L,role,f"q.{L}.codes" in t,ratio,ow,src if role=="consumer" else -1)
        if v.present:
            v.k_codes=t[f"k.{ow}.codes"];v.k_scales=t[f"k.{ow}.scales"];v.q_codes=t[f"q.{L}.codes"];v.q_scales=t[f"q.{L}.scales"];v.weights=t[f"w.{L}"];v.selected=t.get(f"selected.{L}")
            vis=((tr.position+1)//ratio).astype(np.int32)
            start=np.zeros(R,np.int32) if tr.context is None else np.concatenate([[0],np.cumsum(tr.context//ratio)])[tr.request].astype(np.int32)
            v.ks=start; v.ke=start+vis
        tr.layers.append(v)
    tr.requests=1 if tr.context is None else len(tr.context)
    if tr.context is None: tr.context=np.array([len(tr.layers[0].k_codes)*tr.layers[0].ratio])
    return tr
def open_result(path,tr):
    t,meta=read(path)
    r=ResultView(); r.selected={v.layer:t[f"selected.{v.layer}"] for v in tr.layers if f"selected.{v.layer}" in t}; r.blocks=t.get("blocks"); r.numerics=meta.get("numerics"); r.path=path; return r
def version(): return S.lib.tamis_version().decode()
class Engine:
    def __init__(self,tier=None): self.be=S.Backend(tier); self.tier=self.be.tier
    def scores(self,L,a,b,numerics="exact",out=None):
        n=int((L.ke[a:b]-L.ks[a:b]).max(initial=0)); o=np.empty((b-a,n),np.float32)
        x=S.base(S.Mqa,"mqa_logits",L,a,b,numerics); x.logits_type=1; x.columns=n; x.logits=o.ctypes.data; x.ls=n
        S.call(self.be,"mqa_logits",x); return o
    def pool_scores(self,L,r,pool,numerics):
        V=LayerView(0,"full",True,1,0,0); V.k_codes=L.k_codes[L.ks[r]+pool];V.k_scales=L.k_scales[L.ks[r]+pool];V.q_codes=L.q_codes[r:r+1];V.q_scales=L.q_scales[r:r+1];V.weights=L.weights[r:r+1]
        V.ks=np.zeros(1,np.int32);V.ke=np.array([len(pool)],np.int32)
        return self.scores(V,0,1,numerics)[0]
    def _sel(self,x,out): x.selection.topk=out.shape[1]; x.selection.positions=out.ctypes.data; x.selection.ps=out.shape[1]
    def dense(self,*a): return self.consume(*a,dense=True)
    def consume(self,L,a,b,blocks,size,topk,dense=False):
        name="dense" if dense else "consume"; out=np.empty((b-a,topk),np.int32)
        x=S.base(S.Dense if dense else S.Consume,name,L,a,b,"exact"); x.block_size=size;x.width=blocks.shape[1]
        x.blocks=blocks.ctypes.data; x.bs=blocks.shape[1]; self._sel(x,out); S.call(self.be,name,x); return out
    def source(self,L,a,b,topk,size,width):
        out=np.empty((b-a,topk),np.int32); bl=np.empty((b-a,width),np.int32)
        x=S.base(S.Source,"source",L,a,b,"exact"); x.block_size=size or 8;x.topk_blocks=width
        if width: x.blocks=bl.ctypes.data;x.bs=width
        self._sel(x,out); S.call(self.be,"source",x); return out
