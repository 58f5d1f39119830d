// Renews <main> from the server every few seconds; the page is whole without it.
"use strict";

const seconds = 5;
const live = document.getElementById("live");

async function renew() {
  const main = document.getElementById("main");
  // What somebody is reading with the keyboard stays where it is.
  if (document.hidden || main.contains(document.activeElement)) return;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = [...main.querySelectorAll("details[open]")].map((fold) => fold.id);
    main.replaceChildren(...page.getElementById("main").childNodes);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    live.textContent = `Live, ${new Date().toLocaleTimeString()}.`;
  } catch (error) {
    live.textContent = `Not renewed since a while: ${error.message}.`;
  }
}

// One question at a time: the next is asked some seconds after the answer to the last.
async function keepRenewing() {
  await renew();
  setTimeout(keepRenewing, seconds * 1000);
}

setTimeout(keepRenewing, seconds * 1000);
