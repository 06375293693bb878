// The header says that this page makes a call, which no other site can.
export const BY_PAGE = { "x-leasehold-page": "1" };

// Calls the API.
export async function call(method, path, body, headers = {}) {
  const answer = await fetch(path, {
    method,
    headers: { ...BY_PAGE, ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
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

// Makes the call of an order.
export const make = ({ method, path, body }) => call(method, path, body);
