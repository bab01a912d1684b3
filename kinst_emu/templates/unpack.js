"use strict";
// Return the bytes of a packed element.
async function unpack(id) {
  const text = atob(document.getElementById(id).textContent);
  const bytes = Uint8Array.from(text, c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
const unpackJson = async id => JSON.parse(new TextDecoder().decode(await unpack(id)));
