// The same call from elsewhere: as a line for `curl`, and as one for the command line of `leasehold`.

// What acts on a terminal that it is pasted into, or is not seen there, or turns round what stands beside it, but for the
// end of a line.
const HIDDEN = /([\0-\t\v-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}]+)/u;

// A word as every POSIX shell reads it, whatever is in it. What is hidden is spelled by `printf`.
export function quote(word) {
  if (/^[\w@%+:,./-]+$/.test(word)) return word;
  const spelled = (part) => [...new TextEncoder().encode(part)].map((byte) => `\\${byte.toString(8).padStart(3, "0")}`).join("");
  const parts = word.split(HIDDEN).map((part, at) => {
    if (at % 2) return `"$(printf '${spelled(part)}')"`;
    return part && `'${part.replaceAll("'", "'\\''")}'`;
  });
  return parts.join("") || "''";
}

// A flag and its value, if there is one. A value that looks like a flag is written so that it is none.
export function option(name, value) {
  if (value === undefined || value === "") return [];
  return String(value).startsWith("-") ? [`--${name}=${value}`] : [`--${name}`, String(value)];
}

// The words of a command, which is about the server that this page is of; null where no command can say it. `last` is
// what follows after `--`, as the command of a schedule does.
export function words({ cli }) {
  if (!cli) return null;
  const { verbs, on, options = [], last } = cli;
  const flags = [...options, "--server", location.origin];
  const isFlag = on.some((name) => name.startsWith("-"));
  if (last) return isFlag ? null : ["leasehold", ...verbs, ...on, ...flags, "--", ...last];
  return isFlag ? ["leasehold", ...verbs, ...flags, "--", ...on] : ["leasehold", ...verbs, ...on, ...flags];
}

export const command = (order) => words(order)?.map(quote).join(" ") ?? null;

export function curl({ method, path, body }) {
  const parts = ["curl", "-X", method];
  // The shell is to put in the token, which no script can read.
  if (document.querySelector("form[action='/sign-out']")) parts.push('-H "authorization: Bearer $LEASEHOLD_TOKEN"');
  if (body !== undefined) parts.push("-H", quote("content-type: application/json"), "--data-raw", quote(JSON.stringify(body)));
  return [...parts, quote(location.origin + path)].join(" ");
}

function line(id) {
  const place = Object.assign(document.createElement("p"), { hidden: true });
  const code = Object.assign(document.createElement("code"), { id });
  const button = Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: "copy" });
  button.dataset.copy = id;
  place.append(code, button);
  return {
    place,
    say(text) {
      place.hidden = text === null;
      if (code.textContent === text) return;
      code.textContent = text;
      button.textContent = "copy";
    },
  };
}

// A place that shows, folded, how an order is made from elsewhere; `name` tells several of one page apart.
export function elsewhere(name, note = "") {
  const place = Object.assign(document.createElement("details"), { className: "elsewhere" });
  const lines = [line(`${name}-command`), line(`${name}-curl`)];
  place.append(
    Object.assign(document.createElement("summary"), { textContent: "The same from elsewhere" }),
    ...lines.map((one) => one.place),
    Object.assign(document.createElement("small"), { textContent: note }),
  );
  return {
    place,
    show(order) {
      lines[0].say(command(order));
      lines[1].say(curl(order));
    },
  };
}
