// Calls of the API. The header says that this page makes them, which no other site can.
export async function call(method, path, body, headers = {}) {
  const answer = await fetch(path, {
    method,
    headers: { "x-leasehold-page": "1", ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await answer.text();
  let said = null;
  try {
    said = text ? JSON.parse(text) : null;
  } catch {
    said = { detail: text };
  }
  if (!answer.ok) {
    throw new Error(said?.detail ?? answer.statusText);
  }
  return said;
}
