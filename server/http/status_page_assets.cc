#include "server/http/status_page_assets.h"

namespace voxserve {

const char kStatusPageStyle[] = R"css(
:root{--bg:#f5f6f8;--card:#fff;--ink:#16202c;--dim:#66717f;--line:#e3e7ec;--accent:#0a7d8c;--ok:#12805c;--bad:#c0392b;
--wait:#a86a00}
@media(prefers-color-scheme:dark){:root{--bg:#0e1319;--card:#161d26;--ink:#e8edf3;--dim:#8b98a7;--line:#26303c;
--accent:#3cc8d8;--ok:#3ecf95;--bad:#ff7a6b;--wait:#f0b34a}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1060px;margin:0 auto;padding:28px 20px 60px}
header{display:flex;align-items:center;gap:14px;flex-wrap:wrap;margin-bottom:22px}
h1{font-size:24px;margin:0;letter-spacing:-.01em}h2{font-size:18px;margin:0;overflow-wrap:anywhere}
h3{font-size:13px;font-weight:500;color:var(--dim);margin:18px 0 4px}
.dim{color:var(--dim)}.small{font-size:13px}.num{font-variant-numeric:tabular-nums}
.pill{padding:2px 11px;border-radius:99px;font-size:13px;font-weight:600;border:1px solid currentColor}
.ok{color:var(--ok)}.bad{color:var(--bad)}.wait{color:var(--wait)}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px 20px;margin-bottom:16px}
.top{display:flex;align-items:center;gap:12px;flex-wrap:wrap;margin-bottom:6px}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(128px,1fr));gap:12px;margin:14px 0}
.tile b{display:block;font-size:22px;font-weight:650;line-height:1.25}
.tile span{display:block;color:var(--dim);font-size:12.5px;
line-height:1.3}
svg{display:block;width:100%;height:56px}
table{border-collapse:collapse;width:100%;font-size:13px}
td,th{padding:2px 0 2px 14px;text-align:right;white-space:nowrap}
th{color:var(--dim);font-weight:500}td:first-child,th:first-child{text-align:left;padding-left:0}
td.wide{width:60%}.bar{height:8px;border-radius:4px;background:var(--accent);min-width:2px}
.chips{display:flex;flex-wrap:wrap;gap:6px}
.chip{display:flex;align-items:center;gap:6px;font-size:12.5px;
border:1px solid var(--line);border-radius:99px;padding:1px 9px}.dot{width:9px;height:9px;border-radius:50%}
ul{margin:8px 0 0;padding-left:20px;overflow-wrap:anywhere}a{color:var(--accent)}#gone{display:none;margin-bottom:16px}
@media(max-width:560px){main{padding:18px 10px 40px}.card{padding:14px}.wide{display:none}
.tiles{grid-template-columns:repeat(3,1fr)}.tile b{font-size:18px}}
)css";

// The page makes one request at a time, and none while it is hidden.
const char kStatusPageScript[] = R"js(
async function refresh(){const gone=document.getElementById('gone');try{if(!document.hidden){
const answer=await fetch('/');if(!answer.ok)throw answer.status;
const page=new DOMParser().parseFromString(await answer.text(),'text/html');
document.getElementById('live').replaceWith(page.getElementById('live'));gone.style.display='none';}
}catch(e){gone.style.display='block'}setTimeout(refresh,2000)}
setTimeout(refresh,2000);
)js";

}  // namespace voxserve
